// Every device plan by both executors, ranks as threads: the bits are those of the serial fold.
#include <gtest/gtest.h>

#include "gpu/cuda/thread_ranks.h"

namespace ringdp::gpu::testing {
namespace {

std::vector<std::string> nothing(int world) { return std::vector<std::string>(world); }

bool waits_inside_kernels(plan::DeviceAlgorithm algorithm) { return algorithm == plan::DeviceAlgorithm::kPush; }

class EveryRun : public ::testing::TestWithParam<int> {};

TEST_P(EveryRun, EveryPlanGivesTheBitsOfTheSerialFold) {
  for (const int executor : {RD_GPU_SPIN, RD_GPU_STREAM}) {
    for (const plan::testing::DeviceKind& kind : plan::testing::device_kinds()) {
      if (executor == RD_GPU_STREAM && waits_inside_kernels(kind.algorithm)) continue;
      RankCase one;
      one.world = GetParam();
      one.algorithm = kind.algorithm;
      one.what = kind.what;
      one.executor = executor;
      EXPECT_EQ(run_threads(one), nothing(one.world)) << text_of(kind) << " executor " << executor;
    }
  }
}

TEST_P(EveryRun, RanksThatShareADevice) {
  for (const int executor : {RD_GPU_SPIN, RD_GPU_STREAM}) {
    RankCase one;
    one.world = GetParam();
    one.executor = executor;
    one.one_device = true;
    EXPECT_EQ(run_threads(one), nothing(one.world)) << "executor " << executor;
  }
}

TEST_P(EveryRun, EveryTypeThatHasAKernel) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
    RankCase one;
    one.world = GetParam();
    one.dtype = dtype;
    one.sharing = RD_GPU_SHARE_FD;
    EXPECT_EQ(run_threads(one), nothing(one.world)) << name_of(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryRun, ::testing::Values(1, 2, 4));

TEST(Run, KernelsOnOneDeviceRunSideBySideOnlyIfTheyFit) {
  RankCase one;
  one.one_device = true;
  one.blocks = 4;  // all that the device holds
  one.launches = 1;
  one.deadline_ns = 300'000'000;
  const auto said = run_threads(one);
  EXPECT_TRUE(said[0].find("gave up") != std::string::npos || said[1].find("gave up") != std::string::npos);
}

}  // namespace
}  // namespace ringdp::gpu::testing
