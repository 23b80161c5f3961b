#include "device/plan/plan.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

DevicePlan of_bfloat16(std::vector<DeviceStep> steps) {
  DevicePlan plan;
  plan.algorithm = "x";
  plan.what = Collective::kAllReduce;
  plan.dtype = DType::kBF16;
  plan.op = ReduceOp::kAvg;
  plan.rank = 1;
  plan.world = 3;
  plan.steps = std::move(steps);
  return plan;
}

DeviceRef input(int64_t at, int8_t rank = kOwnRank) { return {DeviceSpace::kInput, rank, false, at}; }
DeviceRef output(int64_t at, int8_t rank = kOwnRank) { return {DeviceSpace::kOutput, rank, false, at}; }
DeviceRef stage(int64_t at, int8_t rank, bool wide) { return {DeviceSpace::kStage, rank, wide, at}; }

TEST(DevicePlan, PrintsALineForEachStep) {
  const DeviceRef pushed = {DeviceSpace::kPushed, kAllRanks, false, 0};
  const DevicePlan plan = of_bfloat16({
      {DeviceVerb::kPost, false, 2, kEntrySlot, 1, {}, {}, {}, 0},
      {DeviceVerb::kAwait, false, 0, kExitSlot, 1, {}, {}, {}, 0},
      {DeviceVerb::kCopy, false, 0, 0, 0, input(8), {}, stage(32, 2, false), 8},
      {DeviceVerb::kAdd, false, 0, 0, 0, stage(32, kOwnRank, false), input(16), stage(0, 2, true), 8},
      {DeviceVerb::kAdd, true, 0, 0, 0, stage(16, kOwnRank, true), input(0), output(0), 8},
      {DeviceVerb::kSum, true, 0, 0, 0, input(8, kAllRanks), {}, output(8, kAllRanks), 16},
      {DeviceVerb::kPush, false, 0, 0, 0, input(0), {}, pushed, 64},
      {DeviceVerb::kSumPushed, true, 0, 0, 0, input(0), {}, output(0), 64},
  });
  EXPECT_EQ(text_of(plan),
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
  const DeviceTraffic sums = traffic_of(of_bfloat16({
      {DeviceVerb::kPost, false, 2, kEntrySlot, 1, {}, {}, {}, 0},
      {DeviceVerb::kSum, true, 0, 0, 0, input(0, kAllRanks), {}, output(0, kAllRanks), 8},            // 16 bytes
      {DeviceVerb::kAdd, false, 0, 0, 0, stage(0, kOwnRank, true), input(0), stage(0, 2, true), 16},  // 64, 32, 64
  }));
  EXPECT_EQ(sums.read_local, 16 + 64 + 32);
  EXPECT_EQ(sums.read_remote, 2 * 16);
  EXPECT_EQ(sums.written_local, 16);
  EXPECT_EQ(sums.written_remote, 2 * 16 + 64);
}

TEST(DevicePlan, APackIsSixteenBytes) {
  EXPECT_EQ(pack_elements(DType::kBool), 16);
  EXPECT_EQ(pack_elements(DType::kF16), 8);
  EXPECT_EQ(pack_elements(DType::kF16, true), 4);
  EXPECT_EQ(pack_elements(DType::kF64, true), 2);
}

}  // namespace
}  // namespace ringdp::plan
