#include <gtest/gtest.h>

#include "plan/device_cases.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

DeviceProblem direct_problem(Collective what, int world, int64_t packs) {
  return device_problem({DeviceAlgorithm::kDirect, what}, world, packs);
}

// 2(N-1)/N S over links each way: what is read from others and what is written to them, half each.
TEST(DeviceDirect, AllReduceMovesTheTextbookBytes) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = direct_problem(Collective::kAllReduce, world, 10 * world);
    const int64_t tensor = problem.count * 4;
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kDirect, problem)) {
      const DeviceTraffic sums = traffic_of(plan);
      EXPECT_EQ(sums.read_there, (world - 1) * tensor / world);
      EXPECT_EQ(sums.written_there, (world - 1) * tensor / world);
      EXPECT_EQ(sums.read_here + sums.written_here, 2 * tensor / world);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 1);
      EXPECT_EQ(plan.stage_bytes, 0);
    }
  }
}

TEST(DeviceDirect, ReduceScatterReadsEveryPartOnce) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = direct_problem(Collective::kReduceScatter, world, 10);
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kDirect, problem)) {
      EXPECT_EQ(traffic_of(plan).read_there, (world - 1) * problem.count * 4);
      EXPECT_EQ(traffic_of(plan).written_there, 0);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 1);
    }
  }
}

// Slices of whole packs, none of which is nobody's or two ranks'.
TEST(DeviceDirect, SlicesCoverTheTensor) {
  for (const int64_t packs : {1, 2, 7, 64}) {
    const DeviceProblem problem = direct_problem(Collective::kAllReduce, 5, packs);
    int64_t next = 0;
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kDirect, problem)) {
      for (const DeviceStep& step : plan.steps) {
        if (step.verb != DeviceVerb::kSum) continue;
        EXPECT_EQ(step.from.offset, next);
        next += step.count;
      }
    }
    EXPECT_EQ(next, problem.count);
  }
}

TEST(DeviceDirect, IsPrinted) {
  DeviceProblem problem = direct_problem(Collective::kAllReduce, 2, 2);
  problem.rank = 1;
  EXPECT_EQ(text_of(device_direct(problem)),
            "all_reduce direct float32 SUM, rank 1 of 2: 5 steps\n"
            "0 post entry 1 to 0\n"
            "1 await entry 1 of 0\n"
            "2 sum 4 elements: input of all at 4 -> output of all at 4, finished\n"
            "3 post exit 1 to 0\n"
            "4 await exit 1 of 0");
}

}  // namespace
}  // namespace ringdp::plan::testing
