// The rings of kernels: the bytes of the textbook, neighbours only, and steps that a kernel takes.
#include <gtest/gtest.h>

#include <map>

#include "device/cpp/plan/cases.h"

namespace ringdp::plan::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF64};

class DeviceRing : public ::testing::TestWithParam<DeviceAlgorithm> {
 protected:
  static Problem problem(Collective what, int world, int64_t packs, DType dtype = DType::kF32) {
    return device_problem({GetParam(), what}, world, packs, dtype);
  }
  static std::vector<DevicePlan> plans(const Problem& problem) { return device_plans(GetParam(), problem); }
  static bool in_rank_order() { return GetParam() == DeviceAlgorithm::kRankRing; }
};

// In rank order: up raw from rank 0, wide from the others but the last; down raw, from all but rank 0. At most 2S in
// fp32, 3S in 16 bits. Rotated: 2(N-1)/N S in fp32; in 16 bits a chunk's first hop is raw, its other partial sums are
// wide, its result is raw again.
TEST_P(DeviceRing, AllReduceMovesTheTextbookBytes) {
  for (int world = 2; world <= 8; ++world) {
    for (const DType dtype : kTypes) {
      const Problem asked = problem(Collective::kAllReduce, world, 10 * world, dtype);
      const int64_t raw = asked.count * size_of(dtype), wide = asked.count * size_of(wide_of(dtype));
      for (const DevicePlan& plan : plans(asked)) {
        const int64_t up = plan.rank == 0 ? raw : plan.rank < world - 1 ? wide : 0;
        const int64_t written = in_rank_order() ? up + (plan.rank > 0 ? raw : 0)
                                                : raw / world + (world - 2) * wide / world + (world - 1) * raw / world;
        EXPECT_EQ(traffic_of(plan).written_remote, written);
        EXPECT_EQ(traffic_of(plan).read_remote, 0);
        EXPECT_LE(plan.stage_bytes, wide);
      }
    }
  }
}

// In rank order prefixes of all parts climb the whole way; a result goes down from the last rank to its owner.
TEST_P(DeviceRing, ReduceScatterSendsResultsToTheirOwnersOnly) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t part = 10 * kPackBytes;
    for (const DevicePlan& plan : plans(problem(Collective::kReduceScatter, world, 10))) {
      const int64_t up = plan.rank < world - 1 ? world * part : 0;
      EXPECT_EQ(traffic_of(plan).written_remote, in_rank_order() ? up + plan.rank * part : (world - 1) * part);
    }
  }
}

// In rank order the link from the last rank to the first is for flags of a reduce_scatter only.
TEST_P(DeviceRing, TalksToNeighboursOnly) {
  for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (const DevicePlan& plan : plans(problem(what, 6, 12))) {
      for (const DeviceStep& step : plan.steps) {
        const int peer = is_flag(step) ? step.peer : step.to.rank >= 0 ? step.to.rank : plan.rank;
        const int apart = (peer - plan.rank + 6) % 6;
        EXPECT_TRUE(apart <= 1 || apart == 5) << text_of(step);
        const bool goes_round = !in_rank_order() || (what == Collective::kReduceScatter && is_flag(step));
        EXPECT_TRUE(goes_round || std::abs(peer - plan.rank) <= 1) << text_of(step);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceRing,
                         ::testing::Values(DeviceAlgorithm::kRankRing, DeviceAlgorithm::kRotatedRing));

// However large the tensor and however small the segments.
TEST(DeviceRankRing, SegmentsAreAsManyAsAKernelHasStepsFor) {
  for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (int world = 2; world <= 8; ++world) {
      size_t most = 0;
      Problem problem = device_problem({DeviceAlgorithm::kRankRing, what}, world, 100000);
      problem.segment_bytes = 16;
      for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRankRing, problem)) {
        most = std::max(most, plan.steps.size());
      }
      EXPECT_LE(most, static_cast<size_t>(kMaxDeviceSteps));
      EXPECT_GE(most, static_cast<size_t>(world == 2 ? 50 : 100)) << world;
    }
  }
}

TEST(DeviceRotatedRing, SendsTheSameBytesToBothNeighbours) {
  for (int world = 3; world <= 8; ++world) {
    const Problem problem = device_problem({DeviceAlgorithm::kRotatedRing, Collective::kAllReduce}, world, 10 * world);
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRotatedRing, problem)) {
      std::map<int, int64_t> elements;
      for (const DeviceStep& step : plan.steps) {
        if (step.count > 0 && step.to.rank >= 0) elements[step.to.rank] += step.count;
      }
      EXPECT_EQ(elements.size(), 2u);
      EXPECT_EQ(elements[(plan.rank + 1) % world], elements[(plan.rank + world - 1) % world]);
    }
  }
}

// 2N - 2 hops, three steps each but for the first and the last of both halves.
TEST(DeviceRotatedRing, StepsDoNotDependOnTheSize) {
  for (int world = 3; world <= 8; ++world) {
    for (const int64_t packs : {1, 2 * world, 1000 * world}) {
      const Problem problem = device_problem({DeviceAlgorithm::kRotatedRing, Collective::kAllReduce}, world, packs);
      for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRotatedRing, problem)) {
        size_t flags = 0;
        for (const DeviceStep& step : plan.steps) flags += is_flag(step);
        EXPECT_EQ(flags, 8u * (world - 1));
        EXPECT_TRUE(packs < 2 * world || plan.steps.size() == 2u * (6 * (world - 2) + 7));
      }
    }
  }
}

TEST(DeviceRings, ArePrinted) {
  Problem problem = device_problem({DeviceAlgorithm::kRankRing, Collective::kAllReduce}, 3, 2, DType::kBF16);
  problem.segment_bytes = 16;
  EXPECT_EQ(text_of(device_plans(DeviceAlgorithm::kRankRing, problem)[1]),
            "all_reduce ring/rank bfloat16 SUM, rank 1 of 3: 11 steps\n"
            "0 await up 1 of 0\n"
            "1 add 8 elements: stage + input -> stage of 2, wide, at 0\n"
            "2 post up 1 to 2\n"
            "3 await up 2 of 0\n"
            "4 add 8 elements: stage at 16 + input at 8 -> stage of 2, wide, at 8\n"
            "5 post up 2 to 2\n"
            "6 await down 1 of 2\n"
            "7 copy 8 elements: output -> output of 0\n"
            "8 await down 2 of 2\n"
            "9 copy 8 elements: output at 8 -> output of 0 at 8\n"
            "10 post down 1 to 0");
  problem = device_problem({DeviceAlgorithm::kRotatedRing, Collective::kAllReduce}, 2, 2);
  EXPECT_EQ(text_of(device_plans(DeviceAlgorithm::kRotatedRing, problem)[0]),
            "all_reduce ring/rotated float32 SUM, rank 0 of 2: 7 steps\n"
            "0 copy 4 elements: input -> stage of 1\n"
            "1 post up 1 to 1\n"
            "2 await up 1 of 1\n"
            "3 add 4 elements: stage + input at 4 -> output at 4, finished\n"
            "4 copy 4 elements: output at 4 -> output of 1 at 4\n"
            "5 post up 2 to 1\n"
            "6 await up 2 of 1");
}

}  // namespace
}  // namespace ringdp::plan::testing
