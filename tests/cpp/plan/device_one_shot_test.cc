#include <gtest/gtest.h>

#include "plan/device_cases.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

TEST(DeviceOneShot, ReadsEverythingFromEverybodyOnce) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = device_problem({DeviceAlgorithm::kOneShot, Collective::kAllReduce}, world, 10);
    const int64_t tensor = problem.count * 4;
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kOneShot, problem)) {
      EXPECT_EQ(traffic_of(plan).read_there, (world - 1) * tensor);
      EXPECT_EQ(traffic_of(plan).written_there, 0);
      EXPECT_EQ(plan.stage_bytes, tensor);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 2);
    }
  }
}

// Tensors that others cannot reach are served too.
TEST(DeviceOneShot, TouchesNobodyElsesTensors) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kOneShot, DeviceAlgorithm::kPush}) {
    for (const DevicePlan& plan : device_plans(algorithm, device_problem({algorithm, Collective::kAllReduce}, 3, 10))) {
      for (const DeviceStep& step : plan.steps) {
        for (const DeviceRef& ref : {step.from, step.to}) {
          const bool is_tensor = ref.space == DeviceSpace::kInput || ref.space == DeviceSpace::kOutput;
          EXPECT_TRUE(!is_tensor || ref.rank == kOwnRank) << text_of(step);
        }
      }
    }
  }
}

// Twice the bytes, for their flags; and no step that waits for anybody else.
TEST(DevicePush, SendsEverythingTwiceAsLongToEverybody) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = device_problem({DeviceAlgorithm::kPush, Collective::kAllReduce}, world, 10);
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kPush, problem)) {
      EXPECT_EQ(traffic_of(plan).written_there, 2 * (world - 1) * problem.count * 4);
      EXPECT_EQ(traffic_of(plan).read_there, 0);
      EXPECT_EQ(plan.pushed_bytes, 2 * problem.count * 4);
      EXPECT_EQ(plan.steps.size(), 2u);
    }
  }
}

TEST(DeviceOneShot, IsPrinted) {
  const DeviceProblem problem = device_problem({DeviceAlgorithm::kOneShot, Collective::kAllReduce}, 2, 1);
  EXPECT_EQ(text_of(device_one_shot(problem)),
            "all_reduce one_shot float32 SUM, rank 0 of 2: 6 steps\n"
            "0 copy 4 elements: input -> stage\n"
            "1 post entry 1 to 1\n"
            "2 await entry 1 of 1\n"
            "3 sum 4 elements: stage of all -> output, finished\n"
            "4 post exit 1 to 1\n"
            "5 await exit 1 of 1");
  EXPECT_EQ(text_of(device_push(problem)),
            "all_reduce push float32 SUM, rank 0 of 2: 2 steps\n"
            "0 push 4 elements: input -> pushed of all\n"
            "1 sum pushed 4 elements: input -> output, finished");
}

}  // namespace
}  // namespace ringdp::plan::testing
