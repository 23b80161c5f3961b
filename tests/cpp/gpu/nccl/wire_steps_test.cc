// Sums that travel encoded: what is encoded, sent, decoded and added, and that tensors end where they end.
#include <gtest/gtest.h>

#include <set>

#include "base/wire_type.h"
#include "gpu/check_work.h"
#include "gpu/nccl/parties.h"

namespace ringdp::gpu {
namespace {

using plan::Collective;
using testing::devices;
using testing::fake_nccl;
using testing::Parties;

using Calls = std::vector<std::string>;

plan::DeviceProblem problem(Collective what, int64_t count, DType dtype, int world) {
  plan::DeviceProblem asked;
  asked.what = what;
  asked.dtype = dtype;
  asked.world = world;
  asked.count = count;
  return asked;
}

class WireSteps : public ::testing::Test {
 protected:
  void meet(int world, WireType wire) {
    parties_ = std::make_unique<Parties>(world);
    parties_->wish.wire = wire;
    met_ = parties_->meet();
    fake_nccl.calls.clear();
  }
  ~WireSteps() override {
    for (const auto& one : met_) one->part();
    met_.clear();
    EXPECT_TRUE(devices.all_is_given_back());
    EXPECT_TRUE(fake_nccl.nothing_is_left());
  }
  // Rank 0's part of the first piece.
  void launch(const plan::DeviceProblem& whole, std::vector<int64_t> held, double divisor = 0) {
    DeviceRanks::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    piece.held = std::move(held);
    piece.divisor = divisor;
    if (whole.what == Collective::kReduceScatter) {
      piece.output_at = whole.world * Pieces::padded_bytes(whole.count, whole.dtype);
    }
    met_[0]->launch(piece, met_[0]->choose(whole), nullptr);
    for (const CodecWork& work : devices.recoded) EXPECT_NO_THROW(check_codec_work(work));
  }

  std::unique_ptr<Parties> parties_;
  std::vector<std::unique_ptr<NcclRanks>> met_;
};

TEST_F(WireSteps, AnAllReduceIsEncodedForEveryOwnerAndSharedEncoded) {
  meet(2, WireType::kFp8);
  launch(problem(Collective::kAllReduce, 1000, DType::kF32, 2), {999}, 2);
  EXPECT_EQ(fake_nccl.calls, (Calls{"start", "send 496 to 1", "receive 520 from 1", "end", "start",
                                    "receive 496 from 1", "send 520 to 1", "end"}));
  ASSERT_EQ(devices.runs.size(), 1u);
  EXPECT_EQ(devices.runs[0].first.divisor, 2);
  EXPECT_NO_THROW(check_work(devices.runs[0].first, DType::kF32));
  // For the other owner, for oneself and back; the other's part; the sum, back, and the other's sum.
  std::vector<std::pair<int64_t, bool>> counts;
  for (const CodecWork& work : devices.recoded) counts.push_back({work.count, work.encodes});
  EXPECT_EQ(counts, (std::vector<std::pair<int64_t, bool>>{{488, true}, {512, true}, {512, false}, {512, false},
                                                           {512, true}, {512, false}, {488, false}}));
  EXPECT_EQ(devices.recoded[0].held, 487) << "the tensor ends there";
  EXPECT_EQ(devices.recoded[1].held, 512);
}

TEST_F(WireSteps, ShorterPartsEndWhereTheyEnd) {
  meet(3, WireType::kInt8);
  launch(problem(Collective::kReduceScatter, 600, DType::kF32, 3), {600, 5, 0});
  std::multiset<int64_t> held;
  for (const CodecWork& work : devices.recoded) {
    if (work.encodes) held.insert(work.held);
  }
  EXPECT_EQ(held, (std::multiset<int64_t>{0, 5, 600}));
}

// A sum that stays with its owner is divided and rounded once, never encoded.
TEST_F(WireSteps, AnOwnersSumIsRoundedToItsType) {
  for (const double divisor : {0.0, 3.0}) {
    meet(3, WireType::kFp8);
    launch(problem(Collective::kReduceScatter, 512, DType::kBF16, 3), {}, divisor);
    const CodecWork last = devices.recoded.back();
    EXPECT_EQ(last.element, DType::kF32);
    EXPECT_EQ(last.wire, WireType::kBf16);
    EXPECT_EQ(last.to, met_[0]->window() + 3 * 1024);
    ASSERT_EQ(devices.runs.size(), divisor == 0 ? 1u : 2u);
    EXPECT_EQ(devices.runs[0].first.divisor, 0) << "a sum that is not finished";
    if (divisor != 0) {
      EXPECT_EQ(devices.runs[1].first.divisor, divisor);
    }
    for (const auto& [work, executor] : devices.runs) EXPECT_NO_THROW(check_work(work, DType::kF32));
    for (const auto& one : met_) one->part();
    met_.clear();
  }
}

TEST_F(WireSteps, OtherSumsTravelAsTheyAre) {
  meet(2, WireType::kBf16);
  launch(problem(Collective::kAllReduce, 8, DType::kBF16, 2), {8});
  launch(problem(Collective::kAllReduce, 4, DType::kI32, 2), {4});
  EXPECT_TRUE(devices.recoded.empty());
}

TEST_F(WireSteps, PiecesEndBetweenBlocksAndFitTheirScratch) {
  meet(4, WireType::kBf16);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      const Pieces pieces = met_[0]->cut(problem(what, 1'000'001, dtype, 4));
      EXPECT_GT(pieces.elements.size(), 1u);
      for (const Extent& piece : pieces.elements) EXPECT_EQ(piece.begin % kWireBlock, 0);
      EXPECT_EQ(pieces.elements.back().end, 1'000'001);
      const plan::DeviceProblem first = problem_of(problem(what, 0, dtype, 4), pieces.elements[0]);
      plan::LinkWish wish;
      wish.wire = WireType::kBf16;
      EXPECT_LE(plan::make_link_plan(plan::DeviceAlgorithm::kDirect, first, wish).scratch_bytes,
                testing::kPartyWindow + testing::kPartyWindow / 4);
    }
  }
}

// Plans of ranks with a longer slice need more scratch; all cut alike, also where that just does not fit.
TEST_F(WireSteps, AllRanksCutAlike) {
  for (const int world : {2, 3}) {
    meet(world, WireType::kFp8);
    for (int64_t blocks = 700; blocks < 1100; ++blocks) {
      const plan::DeviceProblem whole = problem(Collective::kAllReduce, blocks * kWireBlock, DType::kF32, world);
      const std::vector<Extent> first = met_[0]->cut(whole).elements;
      for (int rank = 1; rank < world; ++rank) {
        plan::DeviceProblem theirs = whole;
        theirs.rank = rank;
        const std::vector<Extent> cut = met_[static_cast<size_t>(rank)]->cut(theirs).elements;
        ASSERT_EQ(cut.size(), first.size()) << blocks;
        for (size_t k = 0; k < cut.size(); ++k) ASSERT_EQ(cut[k].end, first[k].end) << blocks;
      }
    }
    for (const auto& one : met_) one->part();
    met_.clear();
  }
}

TEST_F(WireSteps, AreDescribed) {
  meet(2, WireType::kFp8);
  EXPECT_NE(met_[0]->description().find("sums by direct (wire=fp8: each contribution is rounded once), in our kernels; "
                                        "wider floats travel as fp8: 260 bytes for 256 elements"),
            std::string::npos)
      << met_[0]->description();
}

}  // namespace
}  // namespace ringdp::gpu
