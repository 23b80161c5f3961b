#include <gtest/gtest.h>

#include <map>

#include "plan/device_cases.h"
#include "plan/device_texts.h"

namespace ringdp::plan::testing {
namespace {

DeviceProblem rotated_ring_problem(Collective what, int world, int64_t packs, DType dtype) {
  return device_problem({DeviceAlgorithm::kRotatedRing, what}, world, packs, dtype);
}

// 2(N-1)/N S in fp32. In 16 bits a chunk's first hop is raw, its other partial sums are wide, its result is raw again.
TEST(DeviceRingRotated, AllReduceMovesTheTextbookBytes) {
  for (int world = 2; world <= 8; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const DeviceProblem problem = rotated_ring_problem(Collective::kAllReduce, world, 10 * world, dtype);
      const int64_t raw = 10 * kDevicePackBytes, wide = raw / size_of(dtype) * size_of(wide_of(dtype));
      for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRotatedRing, problem)) {
        EXPECT_EQ(traffic_of(plan).written_there, raw + (world - 2) * wide + (world - 1) * raw);
        EXPECT_EQ(traffic_of(plan).read_there, 0);
      }
    }
  }
}

TEST(DeviceRingRotated, ReduceScatterMovesHalfOfThat) {
  for (int world = 2; world <= 8; ++world) {
    const DeviceProblem problem = rotated_ring_problem(Collective::kReduceScatter, world, 10, DType::kF32);
    for (const DevicePlan& plan : device_plans(DeviceAlgorithm::kRotatedRing, problem)) {
      EXPECT_EQ(traffic_of(plan).written_there, (world - 1) * problem.count * 4);
    }
  }
}

TEST(DeviceRingRotated, SendsTheSameBytesToBothNeighbours) {
  for (int world = 3; world <= 8; ++world) {
    const DeviceProblem problem = rotated_ring_problem(Collective::kAllReduce, world, 10 * world, DType::kF32);
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
TEST(DeviceRingRotated, StepsDoNotDependOnTheSize) {
  for (int world = 3; world <= 8; ++world) {
    for (const int64_t packs : {2 * world, 1000 * world}) {
      for (const DevicePlan& plan :
           device_plans(DeviceAlgorithm::kRotatedRing, rotated_ring_problem(Collective::kAllReduce, world, packs, DType::kF32))) {
        EXPECT_EQ(plan.steps.size(), 2u * (6 * (world - 2) + 7));
      }
    }
  }
}

TEST(DeviceRingRotated, IsPrinted) {
  const DeviceProblem problem = rotated_ring_problem(Collective::kAllReduce, 2, 2, DType::kF32);
  EXPECT_EQ(text_of(device_ring_rotated(problem)),
            "all_reduce ring/rotated float32 SUM, rank 0 of 2: 7 steps\n"
            "0 copy 4 elements: input -> stage of 1\n"
            "1 post up 1 to 1\n"
            "2 await up 1 of 1\n"
            "3 add 4 elements: stage at 4 + input at 4 -> output at 4, finished\n"
            "4 copy 4 elements: output at 4 -> output of 1 at 4\n"
            "5 post up 2 to 1\n"
            "6 await up 2 of 1");
}

}  // namespace
}  // namespace ringdp::plan::testing
