// What runs over shared memory of devices, with what, and how it is ended.
#include "gpu/neighbourhood.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "gpu/check_work.h"
#include "gpu/neighbours.h"

namespace ringdp::gpu {
namespace {

using plan::Collective;
using testing::devices;
using testing::Neighbours;

plan::DeviceProblem problem(Collective what, int64_t count, DType dtype = DType::kF32, ReduceOp op = ReduceOp::kSum) {
  plan::DeviceProblem asked;
  asked.what = what;
  asked.dtype = dtype;
  asked.op = op;
  asked.world = 2;
  asked.count = count;
  return asked;
}

class NeighbourhoodTest : public ::testing::Test {
 protected:
  ~NeighbourhoodTest() override {
    for (const auto& one : met_) one->part();
  }
  std::shared_ptr<const Work> launch(const plan::DeviceProblem& whole) {
    Neighbourhood::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    return met_[0]->launch(piece, met_[0]->choose(whole), nullptr);
  }

  Neighbours neighbours_{2};
  std::vector<std::unique_ptr<Neighbourhood>> met_ = neighbours_.meet();
};

class OnStreams : public NeighbourhoodTest {
 protected:
  OnStreams() {
    for (const auto& one : met_) one->part();
    met_.clear();
    devices.same_device = true;
    neighbours_.forge = [](int rank, Card& card) { card.pid = static_cast<uint64_t>(rank); };
    met_ = neighbours_.meet();
  }
};

// What the stream of rank 0 writes.
void post(const Work& work) {
  for (int s = 0; s < work.steps; ++s) {
    const plan::DeviceStep& step = work.step[s];
    if (step.verb != plan::DeviceVerb::kPost) continue;
    work.flags[step.peer]->of[step.slot][0][work.rank].value = work.stream_epoch * kValuesPerEpoch + step.value;
  }
}

TEST_F(NeighbourhoodTest, TheLibrarySaysWhatItReduces) {
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8)), "");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8, DType::kF32, ReduceOp::kMax)), "no kernel for MAX on float32");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kReduceScatter, 8, DType::kI16)), "no kernel for SUM on int16");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllGather, 8, DType::kU8)), "") << "moves need no kernel of their own";
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kReduce, 8, DType::kI16)), "no kernel for SUM on int16");
}

TEST_F(NeighbourhoodTest, ALaunchIsGoodWorkAndCounts) {
  for (const Collective what : {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast,
                                Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    check_work(*launch(problem(what, 1000)), DType::kF32);
  }
  ASSERT_EQ(devices.runs.size(), 6u);
  for (size_t i = 0; i < devices.runs.size(); ++i) {
    EXPECT_EQ(devices.runs[i].second, RD_GPU_SPIN);
    EXPECT_EQ(devices.runs[i].first.stream_epoch, i + 1) << "a kernel's own count of launches";
    EXPECT_EQ(devices.runs[i].first.blocks, 8);
  }
}

TEST_F(NeighbourhoodTest, AStepFindsWhatLiesInWindows) {
  EXPECT_EQ(met_[1]->why_no_step(), "");
  EXPECT_EQ(met_[1]->cut_step(1 << 20).elements.size(), 8u) << "two parts of 4 MiB through a window of 1 MiB";
  check_work(*met_[1]->launch_barrier(1000, nullptr), DType::kF32);
  alignas(16) float own[8];
  StepFacts facts;
  facts.at = 4096;
  facts.count = 8;
  facts.parameters = facts.state[0] = facts.state[1] = own;
  met_[1]->step(facts, nullptr);
  ASSERT_EQ(devices.steps.size(), 1u);
  const AdamWork& work = devices.steps[0];
  check_adam_work(work);
  EXPECT_EQ(work.rank, 1);
  EXPECT_EQ(work.gradients[0], reinterpret_cast<float*>(met_[0]->window() + 4096));
  EXPECT_EQ(work.parameters[0], work.gradients[0]);
  EXPECT_EQ(work.parameters[1], own);
  devices.fails = "adam_step";
  EXPECT_THROW(met_[1]->step(facts, nullptr), Error);
  devices.fails.clear();
}

TEST_F(NeighbourhoodTest, WhatTheDeviceRefusesIsNotCounted) {
  devices.fails = "run";
  EXPECT_THROW(launch(problem(Collective::kAllReduce, 16)), Error);
  devices.fails.clear();
  EXPECT_EQ(launch(problem(Collective::kAllReduce, 16))->stream_epoch, 1u);
}

TEST_F(NeighbourhoodTest, SmallSumsArePushedAndLargeOnesDirect) {
  EXPECT_EQ(met_[0]->choose(problem(Collective::kAllReduce, 16)).algorithm, plan::DeviceAlgorithm::kPush);
  EXPECT_EQ(met_[0]->choose(problem(Collective::kAllReduce, 1 << 24)).algorithm, plan::DeviceAlgorithm::kDirect);
}

TEST_F(NeighbourhoodTest, TheHostsWordAndPoisonAreWhereTheDeviceLooks) {
  met_[0]->await_checked(7, nullptr);
  EXPECT_EQ(devices.awaited, std::vector<uint32_t>{7});
  met_[0]->checked(7);
  EXPECT_EQ(met_[0]->signals().checked, 7u);
  met_[0]->poison(met_[0]->window() + 16, 32, nullptr);
  ASSERT_EQ(devices.poisoned.size(), 1u);
  EXPECT_EQ(devices.poisoned[0].first, met_[0]->window() + 16);
}

TEST_F(NeighbourhoodTest, WhenOneGivesUpAllDo) {
  met_[0]->give_up();
  EXPECT_TRUE(met_[0]->given_up());
  EXPECT_TRUE(met_[1]->given_up()) << "a caller of rank 0 has its memory back, which rank 1 may still read";
}

TEST_F(NeighbourhoodTest, WorkInASegmentKnowsEverybodysAddressesAndAborts) {
  std::vector<std::shared_ptr<DeviceMemory>> memory(2);
  neighbours_.together([&](int r) {
    memory[static_cast<size_t>(r)] = met_[static_cast<size_t>(r)]->segments()->make(4096, neighbours_.around(r));
  });
  const auto asked = problem(Collective::kAllGather, 256);
  Neighbourhood::Piece piece;
  piece.problem = asked;
  piece.deadline_ns = 1000;
  piece.segment = {1, 1024};
  piece.input_step = 1024;
  const auto work = met_[0]->launch(piece, met_[0]->choose(asked), nullptr);
  check_work(*work, DType::kF32);
  for (int r = 0; r < 2; ++r) {
    char* const begin = memory[static_cast<size_t>(r)]->data() + 1024;
    EXPECT_EQ(work->output[r], begin);
    EXPECT_EQ(work->input[r], begin + r * 1024) << "its part of the output";
    EXPECT_NE(work->aborts[r], nullptr);
  }
  EXPECT_EQ(work->aborts[0], work->abort);
  EXPECT_EQ(launch(asked)->aborts[0], nullptr) << "windows are nobody's";
}

TEST_F(NeighbourhoodTest, ARecordIsReadOnceItIsWhole) {
  EXPECT_FALSE(met_[0]->expired());
  auto& record = const_cast<Expired&>(met_[0]->signals().expired);
  record.peer = 1;
  record.set = 1;
  EXPECT_FALSE(met_[0]->expired());
  record.set = 2;
  EXPECT_EQ(met_[0]->expired()->peer, 1);
}

TEST_F(OnStreams, NothingIsPushed) {
  const auto asked = problem(Collective::kAllReduce, 16);
  EXPECT_NE(met_[0]->choose(asked).algorithm, plan::DeviceAlgorithm::kPush);
  check_stream_work(*launch(asked));
  EXPECT_EQ(devices.runs.back().second, RD_GPU_STREAM);
}

TEST_F(OnStreams, WhoIsWaitedForIsKnownAndWaitsEnd) {
  const auto work = launch(problem(Collective::kAllReduce, 16));
  EXPECT_FALSE(met_[0]->waits_for(*work)) << "its own stream has not come so far";
  post(*work);
  ASSERT_TRUE(met_[0]->waits_for(*work));
  EXPECT_EQ(met_[0]->waits_for(*work)->peer, 1);
  EXPECT_FALSE(met_[0]->given_up());
  met_[0]->give_up();
  EXPECT_TRUE(met_[0]->given_up());
  EXPECT_FALSE(met_[0]->waits_for(*work));
  EXPECT_TRUE(met_[1]->given_up()) << "the stream of rank 0 goes on, and tells rank 1 what is not so";
}

}  // namespace
}  // namespace ringdp::gpu
