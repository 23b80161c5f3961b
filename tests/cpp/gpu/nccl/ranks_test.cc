// What runs over NCCL, in which rounds, and how it is ended.
#include "gpu/nccl/ranks.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "gpu/check_work.h"
#include "gpu/nccl/parties.h"
#include "long_tests.h"

namespace ringdp::gpu {
namespace {

using plan::Collective;
using testing::devices;
using testing::fake_nccl;
using testing::Parties;

plan::DeviceProblem problem(Collective what, int64_t count, int rank, DType dtype = DType::kF32) {
  plan::DeviceProblem asked;
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
    for (const auto& one : met_) one->part();
    met_.clear();
    EXPECT_TRUE(devices.all_is_given_back());
    EXPECT_TRUE(fake_nccl.nothing_is_left());
  }
  void forget() { fake_nccl.calls.clear(); }
  void launch(const plan::DeviceProblem& whole) {
    DeviceRanks::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    EXPECT_EQ(met_[0]->launch(piece, met_[0]->choose(whole), nullptr), nullptr);
  }

  Parties parties_{2};
  std::vector<std::unique_ptr<NcclRanks>> met_ = parties_.meet();
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
  plan::DeviceProblem bytes = problem(Collective::kAllGather, 16, 0, DType::kU8);
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
  EXPECT_TRUE(met_[0]->given_up());
  EXPECT_FALSE(met_[1]->given_up());
  EXPECT_EQ(met_[0]->look(), "ncclSend: remote error");
}

TEST_F(NcclRanksTest, AnErrorThatComesLaterIsSaidOnceTheGroupHadItsTime) {
  EXPECT_EQ(met_[0]->look(), "");
  fake_nccl.fails = "async";
  EXPECT_EQ(met_[0]->look(), "") << "a rank that has died is named by the group";
  RINGDP_LONG_TEST();  // the group has two seconds
  std::string said;
  while (said.empty()) said = met_[0]->look();
  EXPECT_EQ(said, "remote error");
  EXPECT_FALSE(met_[0]->given_up());
}

TEST_F(NcclRanksTest, GivingUpAbortsOnceAndQueuesNoMoreMessages) {
  met_[0]->give_up();
  launch(problem(Collective::kAllReduce, 8, 0));
  EXPECT_TRUE(fake_nccl.calls.empty()) << "who gives up may be anybody: it asks no device";
  met_[0]->look();
  met_[0]->look();
  met_[0]->part();
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"abort"}));
}

TEST_F(NcclRanksTest, PartingInPeaceDestroys) {
  met_[1]->part();
  EXPECT_EQ(fake_nccl.calls, (std::vector<std::string>{"destroy"}));
  EXPECT_TRUE(met_[1]->is_alone());
}

TEST_F(NcclRanksTest, TheHostsWordIsWaitedForAndPoisonKnowsTheEnd) {
  char memory[16] = {};
  met_[0]->await_checked(7, nullptr);
  met_[0]->poison(memory, 16, nullptr);
  EXPECT_EQ(devices.awaited, (std::vector<uint32_t>{7}));
  EXPECT_EQ(devices.poisoned.size(), 1u);
}

}  // namespace
}  // namespace ringdp::gpu
