// How ranks that share no memory come to a group of NCCL: all, or none and all know why; nothing is left behind.
#include "device/nccl/ranks.h"

#include <gtest/gtest.h>

#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "device/cpp/nccl/parties.h"
#include "device/runtime/check_work.h"
#include "long_tests.h"

namespace ringdp::gpu {

namespace {

using testing::devices;
using testing::fake_nccl;
using testing::Parties;

void expect_none(const std::string& why, Parties& parties) {
  auto met = parties.bootstrap();
  for (const auto& one : met) EXPECT_EQ(one->why_not(), why);
  for (const auto& one : met) EXPECT_EQ(one->description(), "collectives run on the host: " + why);
  for (const auto& one : met) EXPECT_EQ(one->why_not(plan::Problem{}), why);
  EXPECT_TRUE(devices.all_is_given_back());
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST(NcclMeeting, ADeviceForEachMakesAGroup) {
  Parties parties(3);
  auto met = parties.bootstrap();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find("NCCL 2.29.7: a device for each of 3 ranks"), std::string::npos);
  }
  for (const auto& one : met) one->teardown();
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST(NcclMeeting, WithoutNcclThereIsNone) {
  Parties parties(2);
  fake_nccl.version = 0;
  expect_none("rank 0: no NCCL: none here", parties);
}

TEST(NcclMeeting, OnOneDeviceThereIsNone) {
  Parties parties(2);
  devices.same_device = true;
  expect_none("ranks 0 and 1 share a device, and NCCL wants one for each", parties);
}

TEST(NcclMeeting, WithoutMemoryThereIsNone) {
  for (const char* const failing : {"alloc", "host_alloc", "kernels", "describe"}) {
    Parties parties(2);
    devices.fails = failing;
    expect_none(std::string("rank 0: CUDA: ") + failing + " fails here", parties);
  }
}

TEST(NcclMeeting, WithoutAnIdThereIsNone) {
  Parties parties(2);
  fake_nccl.fails = "id";
  expect_none("rank 0: ncclGetUniqueId: remote error", parties);
}

TEST(NcclMeeting, WhatOneRankIsRefusedAllDoWithout) {
  Parties parties(3);
  fake_nccl.refuses_rank = {1};
  expect_none("rank 1: NCCL: ncclCommInitRank: unhandled system error", parties);
}

}  // namespace

// What runs over NCCL, in which rounds, and how it is ended.

namespace {

using plan::Collective;

plan::Problem problem(Collective what, int64_t count, int rank, DType dtype = DType::kF32) {
  plan::Problem asked;
  asked.what = what;
  asked.dtype = dtype;
  asked.world = 2;
  asked.rank = rank;
  asked.count = count;
  return asked;
}

class NcclRanksTest : public ::testing::Test {
 protected:
  NcclRanksTest() { forget(); }
  ~NcclRanksTest() override {
    for (const auto& one : met_) one->teardown();
    met_.clear();
    EXPECT_TRUE(devices.all_is_given_back());
    EXPECT_TRUE(fake_nccl.nothing_is_left());
  }
  void forget() { fake_nccl.calls.clear(); }
  void launch(const plan::Problem& whole) {
    DeviceRanks::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    EXPECT_EQ(met_[0]->launch(piece, met_[0]->choose(whole), nullptr).plan, nullptr);
  }

  Parties parties_{2};
  std::vector<std::unique_ptr<NcclRanks>> met_ = parties_.bootstrap();
};

TEST_F(NcclRanksTest, ADirectSumIsTwoRoundsWithAFoldBetween) {
  launch(problem(Collective::kAllReduce, 8, 0));
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 16 to 1", "receive 16 from 1", "end", "start",
                                                       "receive 16 from 1", "send 16 to 1", "end"}));
  ASSERT_EQ(devices.runs.size(), 1u);
  EXPECT_EQ(devices.runs[0].second, RD_GPU_SPIN);
  EXPECT_NO_THROW(check_work(devices.runs[0].first, DType::kF32));
}

TEST_F(NcclRanksTest, MovesBringTheirOwnPartToo) {
  float* const window = reinterpret_cast<float*>(met_[0]->window());
  for (int i = 0; i < 4; ++i) window[i] = static_cast<float>(i + 1);
  plan::Problem bytes = problem(Collective::kAllGather, 16, 0, DType::kU8);
  DeviceRanks::Piece piece;
  piece.problem = bytes;
  piece.output_at = 16;
  met_[0]->launch(piece, met_[0]->choose(bytes), nullptr);
  EXPECT_EQ(window[4 + 3], 4.0f);
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"start", "send 16 to 1", "receive 16 from 1", "end"}));
}

TEST_F(NcclRanksTest, WhatHasNoKernelOrPlanIsNamed) {
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8, 0)), "");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8, 0, DType::kI16)), "no kernel for SUM on int16");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kBarrier, 0, 0)), "barrier has no plan between hosts on devices");
}

TEST_F(NcclRanksTest, PiecesFitTheirScratch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Pieces pieces = met_[0]->cut(problem(Collective::kAllReduce, 3'000'001, 0, dtype));
    EXPECT_GT(pieces.elements.size(), 1u);
    EXPECT_EQ(pieces.elements.back().end, 3'000'001);
  }
}

TEST_F(NcclRanksTest, WhatNcclRefusesMakesResultsVoidAndIsSaid) {
  fake_nccl.fails = "send";
  launch(problem(Collective::kAllReduce, 8, 0));
  EXPECT_TRUE(met_[0]->aborted());
  EXPECT_FALSE(met_[1]->aborted());
  EXPECT_EQ(met_[0]->poll(), "ncclSend: remote error");
}

TEST_F(NcclRanksTest, AnErrorThatComesLaterIsSaidOnceTheGroupHadItsTime) {
  EXPECT_EQ(met_[0]->poll(), "");
  fake_nccl.fails = "async";
  for (int k = 0; k < 2; ++k) EXPECT_EQ(met_[0]->poll(), "") << "a rank that has died is named by the group";
  RINGDP_LONG_TEST();  // the group has two seconds
  std::string said;
  while (said.empty()) said = met_[0]->poll();
  EXPECT_EQ(said, "remote error");
  EXPECT_FALSE(met_[0]->aborted());
}

TEST_F(NcclRanksTest, GivingUpAbortsOnceAndQueuesNoMoreMessages) {
  met_[0]->abort();
  launch(problem(Collective::kAllReduce, 8, 0));
  EXPECT_TRUE(fake_nccl.calls.empty()) << "who gives up may be anybody: it asks no device";
  met_[0]->poll();
  met_[0]->poll();
  met_[0]->teardown();
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"abort"}));
  EXPECT_EQ(fake_nccl.ended_elsewhere, 0);
}

TEST_F(NcclRanksTest, PartingInPeaceDestroys) {
  met_[1]->teardown();
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"destroy"}));
  EXPECT_TRUE(met_[1]->is_unmapped_by_peers());
}

TEST_F(NcclRanksTest, TheHostsWordIsWaitedForAndPoisonKnowsTheEnd) {
  char memory[16] = {};
  met_[0]->await_release(7, nullptr);
  met_[0]->poison(memory, 16, nullptr);
  EXPECT_EQ(devices.awaited, (std::vector<uint32_t>{7}));
  EXPECT_EQ(devices.poisoned.size(), 1u);
}

}  // namespace

// Sums that travel encoded: what is encoded, sent, decoded and added, and that tensors end where they end.

namespace {

using Calls = std::vector<std::string>;

plan::Problem problem(Collective what, int64_t count, DType dtype, int world) {
  plan::Problem asked;
  asked.what = what;
  asked.dtype = dtype;
  asked.world = world;
  asked.count = count;
  return asked;
}

class WireSteps : public ::testing::Test {
 protected:
  void bootstrap(int world, WireType wire) {
    parties_ = std::make_unique<Parties>(world);
    parties_->link_settings.wire = wire;
    met_ = parties_->bootstrap();
    fake_nccl.calls.clear();
  }
  ~WireSteps() override {
    for (const auto& one : met_) one->teardown();
    met_.clear();
    EXPECT_TRUE(devices.all_is_given_back());
    EXPECT_TRUE(fake_nccl.nothing_is_left());
  }
  // Rank 0's part of the first piece.
  void launch(const plan::Problem& whole, std::vector<int64_t> held, double divisor = 0) {
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
  bootstrap(2, WireType::kFp8);
  launch(problem(Collective::kAllReduce, 1000, DType::kF32, 2), {999}, 2);
  EXPECT_EQ(fake_nccl.calls, (Calls{"start", "send 496 to 1", "receive 520 from 1", "end", "start",
                                    "receive 496 from 1", "send 520 to 1", "end"}));
  ASSERT_EQ(devices.runs.size(), 1u);
  EXPECT_EQ(devices.runs[0].first.divisor, 2);
  EXPECT_NO_THROW(check_work(devices.runs[0].first, DType::kF32));
  // For the other owner, for oneself and back; the other's part; the sum, back, and the other's sum.
  std::vector<std::pair<int64_t, bool>> counts;
  for (const CodecWork& work : devices.recoded) counts.push_back({work.count, work.encodes});
  EXPECT_EQ(counts,
            (std::vector<std::pair<int64_t, bool>>{
                {488, true}, {512, true}, {512, false}, {512, false}, {512, true}, {512, false}, {488, false}}));
  EXPECT_EQ(devices.recoded[0].held, 487) << "the tensor ends there";
  EXPECT_EQ(devices.recoded[1].held, 512);
}

TEST_F(WireSteps, ShorterPartsEndWhereTheyEnd) {
  bootstrap(3, WireType::kInt8);
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
    bootstrap(3, WireType::kFp8);
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
    for (const auto& one : met_) one->teardown();
    met_.clear();
  }
}

TEST_F(WireSteps, OtherSumsTravelAsTheyAre) {
  bootstrap(2, WireType::kBf16);
  launch(problem(Collective::kAllReduce, 8, DType::kBF16, 2), {8});
  launch(problem(Collective::kAllReduce, 4, DType::kI32, 2), {4});
  EXPECT_TRUE(devices.recoded.empty());
}

TEST_F(WireSteps, PiecesEndBetweenBlocksAndFitTheirScratch) {
  bootstrap(4, WireType::kBf16);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      const Pieces pieces = met_[0]->cut(problem(what, 1'000'001, dtype, 4));
      EXPECT_GT(pieces.elements.size(), 1u);
      for (const Extent& piece : pieces.elements) EXPECT_EQ(piece.begin % kWireBlock, 0);
      EXPECT_EQ(pieces.elements.back().end, 1'000'001);
      const plan::Problem first = problem_of(problem(what, 0, dtype, 4), pieces.elements[0]);
      plan::LinkSettings link_settings;
      link_settings.wire = WireType::kBf16;
      EXPECT_LE(plan::make_link_plan(plan::DeviceAlgorithm::kDirect, first, link_settings).scratch_bytes,
                testing::kPartyWindow + testing::kPartyWindow / 4);
    }
  }
}

// Plans of ranks with a longer slice need more scratch; all cut alike, also where that just does not fit.
TEST_F(WireSteps, AllRanksCutAlike) {
  for (const int world : {2, 3}) {
    bootstrap(world, WireType::kFp8);
    for (int64_t blocks = 700; blocks < 1100; ++blocks) {
      const plan::Problem whole = problem(Collective::kAllReduce, blocks * kWireBlock, DType::kF32, world);
      const std::vector<Extent> first = met_[0]->cut(whole).elements;
      for (int rank = 1; rank < world; ++rank) {
        plan::Problem theirs = whole;
        theirs.rank = rank;
        const std::vector<Extent> cut = met_[static_cast<size_t>(rank)]->cut(theirs).elements;
        ASSERT_EQ(cut.size(), first.size()) << blocks;
        for (size_t k = 0; k < cut.size(); ++k) ASSERT_EQ(cut[k].end, first[k].end) << blocks;
      }
    }
    for (const auto& one : met_) one->teardown();
    met_.clear();
  }
}

TEST_F(WireSteps, AreDescribed) {
  bootstrap(2, WireType::kFp8);
  EXPECT_NE(met_[0]->description().find(
                "sums by direct (wire=fp8: each contribution is rounded once), in our kernels of up to 8 blocks; "
                "wider floats travel as fp8: 260 bytes for 256 elements"),
            std::string::npos)
      << met_[0]->description();
}

}  // namespace

}  // namespace ringdp::gpu
