#include "plan/device_builder.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::plan {
namespace {

DeviceProblem problem(DType dtype) {
  DeviceProblem problem;
  problem.dtype = dtype;
  problem.rank = 1;
  problem.world = 3;
  return problem;
}

TEST(DeviceBuilder, FlagsGrowPerSlotAndPair) {
  DeviceBuilder builder("x", problem(DType::kF32), 8, 8);
  builder.post(0, kUpSlot);
  builder.post(0, kUpSlot);
  builder.post(2, kUpSlot);
  builder.await(0, kUpSlot);
  builder.post(0, kDownSlot);
  const DevicePlan plan = builder.finish();
  std::vector<int> values;
  for (const DeviceStep& step : plan.steps) values.push_back(step.value);
  EXPECT_EQ(values, (std::vector<int>{1, 2, 1, 1, 1}));
}

TEST(DeviceBuilder, MeetsTheNextRankFirst) {
  DeviceBuilder builder("x", problem(DType::kF32), 8, 8);
  builder.meet_all(kExitSlot);
  const DevicePlan plan = builder.finish();
  EXPECT_EQ(text_of(plan), "all_reduce x float32 SUM, rank 1 of 3: 4 steps\n0 post exit 1 to 2\n1 post exit 1 to 0\n"
                           "2 await exit 1 of 2\n3 await exit 1 of 0");
}

// A raw and a wide element have the same room, and both forms start where it does.
TEST(DeviceBuilder, StagesHoldWideElements) {
  DeviceBuilder builder("x", problem(DType::kBF16), 64, 64);
  const DeviceRef raw = builder.stage(16, 2, false), wide = builder.stage(16, 2, true);
  builder.copy(DeviceBuilder::input(0), raw, 8);
  builder.add(raw, DeviceBuilder::input(0), wide, 16);
  const DevicePlan plan = builder.finish();
  EXPECT_EQ(bytes_of(plan, raw, raw.offset), bytes_of(plan, wide, wide.offset));
  EXPECT_EQ(plan.stage_bytes, (16 + 16) * 4);
}

TEST(DeviceBuilder, LeavesOutDataStepsOfNothing) {
  DeviceBuilder builder("x", problem(DType::kF32), 8, 8);
  builder.copy(DeviceBuilder::input(0), DeviceBuilder::output(0), 0);
  builder.sum(DeviceBuilder::input(0, kEverybody), builder.stage(64, kOwnRank, false), 0);
  const DevicePlan plan = builder.finish();
  EXPECT_TRUE(plan.steps.empty());
  EXPECT_EQ(plan.stage_bytes, 0);
}

TEST(DeviceBuilder, RefusesMoreStepsThanAKernelTakes) {
  DeviceBuilder builder("x", problem(DType::kF32), 8, 8);
  for (int i = 0; i <= kMaxDeviceSteps; ++i) builder.copy(DeviceBuilder::input(0), DeviceBuilder::output(0), 4);
  try {
    builder.finish();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("x needs 193 steps on rank 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ringdp::plan
