#include <gtest/gtest.h>

#include "plan/device_cases.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

DeviceProblem rank_ring_problem(Collective what, int world, int64_t packs, DType dtype) {
  return device_problem({DeviceAlgorithm::kRankRing, what}, world, packs, dtype);
}

// Up: raw from rank 0, wide from the others but the last. Down: raw, from all but rank 0. At most 2S in fp32, 3S in 16
// bits.
TEST(DeviceRingRank, AllReduceMovesTheTextbookBytes) {
  for (int world = 2; world <= 8; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      const DeviceProblem problem = rank_ring_problem(Collective::kAllReduce, world, 50, dtype);
      const int64_t raw = problem.count * size_of(dtype), wide = problem.count * size_of(wide_of(dtype));
      for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRankRing, problem)) {
        const int64_t up = plan.rank == 0 ? raw : plan.rank < world - 1 ? wide : 0;
        EXPECT_EQ(traffic_of(plan).written_there, up + (plan.rank > 0 ? raw : 0));
        EXPECT_EQ(traffic_of(plan).read_there, 0);
        EXPECT_LE(plan.stage_bytes, wide);
      }
    }
  }
}

// Prefixes of all parts climb the whole way; a result goes down from the last rank to its owner.
TEST(DeviceRingRank, ReduceScatterSendsResultsToTheirOwnersOnly) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = rank_ring_problem(Collective::kReduceScatter, world, 10, DType::kF32);
    const int64_t part = problem.count * 4;
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRankRing, problem)) {
      const int64_t up = plan.rank < world - 1 ? world * part : 0;
      EXPECT_EQ(traffic_of(plan).written_there, up + plan.rank * part);
    }
  }
}

TEST(DeviceRingRank, TalksToNeighboursOnly) {
  for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRankRing, rank_ring_problem(what, 6, 10, DType::kF32))) {
      for (const DeviceStep& step : plan.steps) {
        const int peer = is_flag(step) ? step.peer : step.to.rank >= 0 ? step.to.rank : plan.rank;
        const int apart = (peer - plan.rank + 6) % 6;
        EXPECT_TRUE(apart <= 1 || apart == 5) << text_of(step);
        EXPECT_TRUE(what == Collective::kReduceScatter || std::abs(peer - plan.rank) <= 1) << text_of(step);
      }
    }
  }
}

// However large the tensor and however small the segments.
TEST(DeviceRingRank, SegmentsAreAsManyAsAKernelHasStepsFor) {
  for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (int world = 2; world <= 8; ++world) {
      size_t most = 0;
      DeviceProblem problem = rank_ring_problem(what, world, 100000, DType::kF32);
      problem.segment_bytes = 16;
      for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRankRing, problem))
        most = std::max(most, plan.steps.size());
      EXPECT_LE(most, static_cast<size_t>(kMaxDeviceSteps));
      EXPECT_GE(most, static_cast<size_t>(world == 2 ? 50 : 100)) << world;
    }
  }
}

TEST(DeviceRingRank, IsPrinted) {
  DeviceProblem problem = rank_ring_problem(Collective::kAllReduce, 3, 2, DType::kBF16);
  problem.segment_bytes = 16;
  problem.rank = 1;
  EXPECT_EQ(text_of(device_ring_rank(problem)),
            "all_reduce ring/rank bfloat16 SUM, rank 1 of 3: 11 steps\n"
            "0 await up 1 of 0\n"
            "1 add 8 elements: stage + input -> stage of 2, wide, at 0\n"
            "2 post up 1 to 2\n"
            "3 await up 2 of 0\n"
            "4 add 8 elements: stage at 16 + input at 8 -> stage of 2, wide, at 8\n"
            "5 post up 2 to 2\n"
            "6 await down 1 of 2\n"
            "7 copy 8 elements: output of 1 -> output of 0\n"
            "8 await down 2 of 2\n"
            "9 copy 8 elements: output of 1 at 8 -> output of 0 at 8\n"
            "10 post exit 1 to 0");
}

}  // namespace
}  // namespace ringdp::plan::testing
