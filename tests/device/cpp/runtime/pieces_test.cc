// How tensors go through windows: every element once, every byte in a place of its own.
#include "device/runtime/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace ringdp::gpu {
namespace {

using plan::Collective;
using plan::DeviceAlgorithm;

constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast, Collective::kAllToAll,      Collective::kReduce,
                               Collective::kGather,    Collective::kScatter};

plan::Problem problem(Collective what, int world, int64_t count, DType dtype = DType::kF32) {
  plan::Problem asked;
  asked.what = what;
  asked.world = world;
  asked.count = count;
  asked.dtype = dtype;
  return asked;
}

// Where the parts of a piece begin and end in the window.
std::vector<Extent> places(const Pieces& pieces, int64_t count, DType dtype) {
  std::vector<Extent> found;
  const int64_t bytes = Pieces::padded_bytes(count, dtype);
  for (int i = 0; i < pieces.inputs; ++i) found.push_back({pieces.input_at(i, count, dtype), 0});
  for (int i = 0; i < pieces.outputs && !pieces.in_place; ++i) found.push_back({pieces.output_at(i, count, dtype), 0});
  for (Extent& place : found) place.end = place.begin + bytes;
  return found;
}

StageOf stage_of(DeviceAlgorithm algorithm) {
  return [algorithm](const auto& piece) { return plan::make_device_plan(algorithm, piece).stage_bytes; };
}

TEST(Pieces, CoverEveryElementOnceWithinTheWindow) {
  const Room room{4096, 4096};
  for (const Collective what : kAll) {
    for (const int world : {1, 2, 3, 8}) {
      for (const int64_t count : {1, 3, 4, 5, 63, 64, 1000, 4096, 10001}) {
        const auto asked = problem(what, world, count);
        const Pieces pieces = cut(stage_of(DeviceAlgorithm::kDirect), asked, room);
        int64_t next = 0;
        for (const Extent& piece : pieces.elements) {
          EXPECT_EQ(piece.begin, next);
          EXPECT_GT(piece.count(), 0);
          EXPECT_EQ(piece.begin % 4, 0) << "pieces begin at packs of the tensor";
          next = piece.end;
          auto parts = places(pieces, piece.count(), DType::kF32);
          std::sort(parts.begin(), parts.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
          EXPECT_EQ(parts.front().begin, 0);
          for (size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i].begin, parts[i - 1].end);
          EXPECT_LE(parts.back().end, room.window_bytes / 2) << "the other half is the next piece's";
          EXPECT_EQ(problem_of(asked, piece).count % 4, 0);
          EXPECT_GE(problem_of(asked, piece).count, piece.count());
        }
        EXPECT_EQ(next, count);
        EXPECT_EQ(pieces.place_of(0), 0);
        EXPECT_EQ(pieces.place_of(1), pieces.elements.size() > 1 ? room.window_bytes / 2 : 0);
        EXPECT_EQ(pieces.place_of(2), 0);
      }
    }
  }
}

TEST(Pieces, HalvesOfAnyWindowAreAligned) {
  const Pieces pieces =
      cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllReduce, 2, 10'000), {4096 + 4, 0});
  EXPECT_EQ(pieces.place_of(1) % 128, 0);
}

TEST(Pieces, AreAlikeOnAllRanks) {
  for (const Collective what : kAll) {
    auto asked = problem(what, 4, 12345, DType::kBF16);
    const Pieces first = cut(stage_of(DeviceAlgorithm::kDirect), asked, {1 << 12, 1 << 12});
    asked.root = 2;
    for (asked.rank = 1; asked.rank < 4; ++asked.rank) {
      const Pieces pieces = cut(stage_of(DeviceAlgorithm::kDirect), asked, {1 << 12, 1 << 12});
      ASSERT_EQ(pieces.elements.size(), first.elements.size());
      EXPECT_EQ(pieces.elements.back().begin, first.elements.back().begin);
    }
  }
}

TEST(Pieces, WhatFitsHalfAWindowIsOnePiece) {
  EXPECT_EQ(
      cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllReduce, 2, 1024), {8192, 0}).elements.size(), 1u);
  EXPECT_EQ(
      cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllReduce, 2, 1025), {8192, 0}).elements.size(), 2u);
}

TEST(Pieces, NothingIsOneEmptyPieceAtWhichRanksMeet) {
  const Pieces pieces = cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllGather, 3, 0), {4096, 0});
  ASSERT_EQ(pieces.elements.size(), 1u);
  EXPECT_EQ(pieces.elements[0].count(), 0);
}

TEST(Pieces, APlanThatNeedsTheStageIsCutByIt) {
  const auto asked = problem(Collective::kAllReduce, 4, 100000);
  const Room room{1 << 20, 1 << 14};
  const Pieces pieces = cut(stage_of(DeviceAlgorithm::kRankRing), asked, room);
  EXPECT_GT(pieces.elements.size(), 1u);
  for (const Extent& piece : pieces.elements) {
    EXPECT_LE(plan::make_device_plan(DeviceAlgorithm::kRankRing, problem_of(asked, piece)).stage_bytes,
              room.stage_bytes);
  }
}

TEST(Pieces, BlocksAreNotParted) {
  for (const int64_t count : {1, 255, 256, 1000, 5000}) {
    const auto asked = problem(Collective::kReduceScatter, 3, count);
    const Pieces pieces = cut(stage_of(DeviceAlgorithm::kDirect), asked, {10000, 1 << 20, 256});
    int64_t next = 0;
    for (const Extent& piece : pieces.elements) {
      EXPECT_EQ(piece.begin, next);
      EXPECT_EQ(piece.begin % 256, 0);
      EXPECT_LE(4 * piece.count() * 4, 10000);
      next = piece.end;
    }
    EXPECT_EQ(next, count);
  }
  EXPECT_THROW(cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kReduceScatter, 3, 4), {4000, 1 << 20, 256}),
               Error);
}

TEST(Pieces, InABufferTensorsAreWhole) {
  const auto sum =
      cut_in_buffer(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllReduce, 4, 100001), 1 << 14);
  ASSERT_TRUE(sum);
  EXPECT_TRUE(sum->in_place);
  ASSERT_EQ(sum->elements.size(), 1u) << "no window bounds it";
  EXPECT_EQ(sum->elements[0].count(), 100001);
  const auto gather = cut_in_buffer(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllGather, 4, 1000), 0);
  ASSERT_TRUE(gather);
  EXPECT_EQ(gather->elements.size(), 1u);
  for (int part = 0; part < 4; ++part) EXPECT_EQ(gather->output_at(part, 1000, DType::kF32), part * 4000);
}

TEST(Pieces, InABufferAStageStillBounds) {
  const auto asked = problem(Collective::kAllReduce, 4, 100000);
  EXPECT_GT(cut_in_buffer(stage_of(DeviceAlgorithm::kRankRing), asked, 1 << 14)->elements.size(), 1u);
}

TEST(Pieces, WhatCannotRunInABufferHasNone) {
  EXPECT_FALSE(cut_in_buffer(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllGather, 4, 1001), 0))
      << "inside a pack";
  for (const Collective what : {Collective::kReduceScatter, Collective::kBroadcast, Collective::kAllToAll}) {
    EXPECT_FALSE(cut_in_buffer(stage_of(DeviceAlgorithm::kDirect), problem(what, 4, 1000), 0));
  }
}

TEST(Pieces, AWindowThatHoldsNoPackIsRefused) {
  try {
    cut(stage_of(DeviceAlgorithm::kDirect), problem(Collective::kAllToAll, 8, 10), {128, 128});
    FAIL() << "16 parts need 256 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("raise window_bytes"), std::string::npos);
  }
}

TEST(Pieces, OfAStepHoldEverybodysElementsOnceEach) {
  for (const int world : {1, 2, 3, 8}) {
    for (const int64_t count : {0, 1024, 5120}) {
      const Pieces pieces = cut_step(world, count, 4096);
      int64_t next = 0;
      for (const Extent& piece : pieces.elements) {
        EXPECT_EQ(piece.begin, next);
        EXPECT_EQ(piece.begin % 4, 0);
        EXPECT_LE(pieces.input_at(world, piece.count(), DType::kF32), 4096);
        next = piece.end;
      }
      EXPECT_EQ(next, count);
    }
  }
  EXPECT_THROW(cut_step(8, 1024, 64), Error);
}

}  // namespace
}  // namespace ringdp::gpu
