#include <gtest/gtest.h>

#include "plan/device_cases.h"
#include "plan/device_check.h"
#include "plan/device_race.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

constexpr DeviceKind kRooted[] = {{DeviceAlgorithm::kDirect, Collective::kReduce},
                                  {DeviceAlgorithm::kOneShot, Collective::kReduce},
                                  {DeviceAlgorithm::kDirect, Collective::kGather},
                                  {DeviceAlgorithm::kDirect, Collective::kScatter},
                                  {DeviceAlgorithm::kDirect, Collective::kBroadcast}};

std::vector<DevicePlan> plans_of(const DeviceKind& kind, int world, int root, int64_t packs) {
  DeviceProblem problem = device_problem(kind, world, packs);
  problem.root = root;
  return device_plans(kind.algorithm, problem);
}

// Also where the root changes from one to the next: nobody counts on who was it before.
TEST(DeviceRooted, AnyRootAfterAnyOther) {
  for (int world = 2; world <= 8; ++world) {
    for (const DeviceKind& kind : kRooted) {
      for (int root = 0; root < world; ++root) {
        const std::vector<DevicePlan> first = plans_of(kind, world, root, 9);
        check_together(first);
        const DeviceKind& other = kRooted[(root + world) % std::size(kRooted)];
        const std::vector<DevicePlan> second = plans_of(other, world, (root + 1) % world, 9);
        for (const bool in_place : {false, true}) {
          EXPECT_EQ(find_race({first, second, first}, 2, in_place), "") << text_of(kind) << ", " << text_of(other);
        }
      }
    }
  }
}

TEST(DeviceRooted, OnlyTheRootMovesAndEveryPartOnce) {
  for (int world = 2; world <= 8; ++world) {
    for (const DeviceKind& kind : {kRooted[1], kRooted[2], kRooted[3]}) {
      const int64_t part = 10 * kDevicePackBytes;
      for (const DevicePlan& plan : plans_of(kind, world, 1, 10)) {
        const DeviceTraffic sums = traffic_of(plan);
        const int64_t expected = plan.rank == 1 ? (world - 1) * part : 0;
        EXPECT_EQ(sums.read_there + sums.written_there, expected) << text_of(kind);
        EXPECT_EQ(kind.what == Collective::kScatter ? sums.read_there : sums.written_there, 0) << text_of(kind);
      }
    }
  }
}

// What a root alone reads, (N-1) S, others halve and more: 2(N-1)/N S reach it.
TEST(DeviceRooted, OwnersShareAReduce) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t tensor = 10 * world * kDevicePackBytes;
    int64_t written_to_root = 0;
    for (const DevicePlan& plan : plans_of(kRooted[0], world, 1, 10 * world)) {
      EXPECT_EQ(traffic_of(plan).read_there, (world - 1) * tensor / world);
      written_to_root += traffic_of(plan).written_there;
      EXPECT_EQ(traffic_of(plan).written_here, plan.rank == 1 ? tensor / world : 0);
    }
    EXPECT_EQ(written_to_root, (world - 1) * tensor / world);
  }
}

TEST(DeviceRooted, ArePrinted) {
  EXPECT_EQ(text_of(plans_of(kRooted[2], 2, 1, 1)[1]),
            "gather direct float32 SUM, rank 1 of 2: 4 steps\n0 await entry 1 of 0\n"
            "1 copy 4 elements: input of 1 -> output at 4\n2 copy 4 elements: input of 0 -> output\n"
            "3 post exit 1 to 0");
  EXPECT_EQ(text_of(plans_of(kRooted[3], 2, 1, 1)[0]),
            "scatter direct float32 SUM, rank 0 of 2: 2 steps\n0 post entry 1 to 1\n1 await exit 1 of 1");
  EXPECT_EQ(text_of(plans_of(kRooted[1], 3, 0, 1)[0]),
            "reduce one_shot float32 SUM, rank 0 of 3: 5 steps\n0 await entry 1 of 1\n1 await entry 1 of 2\n"
            "2 sum 4 elements: input of all -> output, finished\n3 post exit 1 to 1\n4 post exit 1 to 2");
}

}  // namespace
}  // namespace ringdp::plan::testing
