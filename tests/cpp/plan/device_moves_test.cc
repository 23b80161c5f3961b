#include <gtest/gtest.h>

#include "plan/device_cases.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

constexpr int64_t kPacks = 840;  // divides by all numbers of ranks, and of receivers

std::vector<DevicePlan> plans_of(Collective what, int world) {
  return device_plans(DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, what}, world, kPacks));
}

TEST(DeviceMoves, EveryPartIsWrittenOnceToEverybodyElse) {
  for (int world = 2; world <= 8; ++world) {
    for (const Collective what : {Collective::kAllGather, Collective::kAllToAll}) {
      for (const DevicePlan& plan : plans_of(what, world)) {
        const int64_t part = kPacks * kDevicePackBytes;
        EXPECT_EQ(traffic_of(plan).written_there, (world - 1) * part);
        EXPECT_EQ(traffic_of(plan).written_here, part);
        EXPECT_EQ(traffic_of(plan).read_there, 0);
        EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + (what == Collective::kAllGather ? 1 : world));
      }
    }
  }
}

// The root sends every element once, its receivers hand their slices on.
TEST(DeviceMoves, BroadcastSharesTheWorkOfTheRoot) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t tensor = kPacks * kDevicePackBytes;
    for (const DevicePlan& plan : plans_of(Collective::kBroadcast, world)) {
      const bool is_root = plan.rank == world / 2;
      EXPECT_EQ(traffic_of(plan).written_there, is_root ? tensor : (world - 2) * (tensor / (world - 1)));
      EXPECT_EQ(traffic_of(plan).written_here, 0);
      EXPECT_EQ(plan.steps.size(), is_root ? 3u * (world - 1) : 2 + 3u * (world - 2));
    }
  }
}

TEST(DeviceMoves, ABarrierIsFlagsOnly) {
  const DeviceProblem problem = device_problem({DeviceAlgorithm::kDirect, Collective::kBarrier}, 3, 0);
  EXPECT_EQ(text_of(device_moves(problem)),
            "barrier direct float32 SUM, rank 0 of 3: 4 steps\n0 post entry 1 to 1\n1 post entry 1 to 2\n"
            "2 await entry 1 of 1\n3 await entry 1 of 2");
}

TEST(DeviceMoves, AMessageIsABroadcastOfTwo) {
  DeviceProblem problem = device_problem({DeviceAlgorithm::kDirect, Collective::kBroadcast}, 2, 3);
  problem.root = 0;
  EXPECT_EQ(text_of(device_moves(problem)),
            "broadcast direct float32 SUM, rank 0 of 2: 3 steps\n0 await entry 1 of 1\n"
            "1 copy 12 elements: input -> output of 1\n2 post down 1 to 1");
  problem.rank = 1;
  EXPECT_EQ(text_of(device_moves(problem)),
            "broadcast direct float32 SUM, rank 1 of 2: 2 steps\n0 post entry 1 to 0\n1 await down 1 of 0");
}

}  // namespace
}  // namespace ringdp::plan::testing
