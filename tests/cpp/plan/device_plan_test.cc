#include "plan/device_plan.h"

#include <gtest/gtest.h>

#include "plan/device_builder.h"

namespace ringdp::plan {
namespace {

DeviceProblem of_bfloat16() {
  DeviceProblem problem;
  problem.dtype = DType::kBF16;
  problem.op = ReduceOp::kAvg;
  problem.world = 3;
  problem.rank = 1;
  return problem;
}

TEST(DevicePlan, PrintsALineForEachStep) {
  DeviceBuilder builder("x", of_bfloat16(), 64, 64);
  builder.post(2, kEntrySlot);
  builder.await(0, kExitSlot);
  builder.copy(DeviceBuilder::input(8), builder.stage(16, 2, false), 8);
  builder.add(builder.stage(16, kOwnRank, false), DeviceBuilder::input(16), builder.stage(0, 2, true), 8);
  builder.add_last(builder.stage(16, kOwnRank, true), DeviceBuilder::input(0), DeviceBuilder::output(0), 8);
  builder.sum(DeviceBuilder::input(8, kEverybody), DeviceBuilder::output(8, kEverybody), 16);
  builder.push(DeviceBuilder::input(0), 64);
  builder.sum_pushed(DeviceBuilder::input(0), DeviceBuilder::output(0), 64);
  EXPECT_EQ(text_of(builder.finish()),
            "all_reduce x bfloat16 AVG, rank 1 of 3: 8 steps\n"
            "0 post entry 1 to 2\n"
            "1 await exit 1 of 0\n"
            "2 copy 8 elements: input at 8 -> stage of 2 at 32\n"
            "3 add 8 elements: stage at 32 + input at 16 -> stage of 2, wide, at 0\n"
            "4 add 8 elements: stage, wide, at 16 + input -> output, finished\n"
            "5 sum 16 elements: input of all at 8 -> output of all at 8, finished\n"
            "6 push 64 elements: input -> pushed of all\n"
            "7 sum pushed 64 elements: input -> output, finished");
}

TEST(DevicePlan, CountsWhatEachRefMoves) {
  DeviceBuilder builder("x", of_bfloat16(), 64, 64);
  builder.post(2, kEntrySlot);
  builder.sum(DeviceBuilder::input(0, kEverybody), DeviceBuilder::output(0, kEverybody), 8);      // 16 bytes
  builder.add(builder.stage(0, kOwnRank, true), DeviceBuilder::input(0), builder.stage(0, 2, true), 16);  // 64, 32, 64
  const DeviceTraffic sums = traffic_of(builder.finish());
  EXPECT_EQ(sums.read_here, 16 + 64 + 32);
  EXPECT_EQ(sums.read_there, 2 * 16);
  EXPECT_EQ(sums.written_here, 16);
  EXPECT_EQ(sums.written_there, 2 * 16 + 64);
}

TEST(DevicePlan, APackIsSixteenBytes) {
  EXPECT_EQ(pack_elements(DType::kBool), 16);
  EXPECT_EQ(pack_elements(DType::kF16), 8);
  EXPECT_EQ(pack_elements(DType::kF16, true), 4);
  EXPECT_EQ(pack_elements(DType::kF64, true), 2);
}

}  // namespace
}  // namespace ringdp::plan
