#include "device/plan/select.h"

#include <gtest/gtest.h>

#include <limits>

namespace ringdp::plan {
namespace {

DeviceTopology mesh(int world) {
  DeviceTopology topology;
  topology.world = world;
  topology.stage_bytes = topology.pushed_bytes = int64_t{1} << 40;
  return topology;
}

DeviceChoice choose(const DeviceTopology& topology, int64_t bytes) {
  return select_device_plan(topology, Collective::kAllReduce, bytes);
}

TEST(DeviceSelect, TheCrossoverIsTheFormula) {
  for (int n = 3; n <= 8; ++n) {
    DeviceTopology topology = mesh(n);
    topology.barrier_seconds = 2e-6;
    topology.bytes_per_second = 100e9;
    const double formula = 2e-6 * 100e9 * n / ((n - 1.0) * (n - 2.0));
    EXPECT_NEAR(static_cast<double>(one_shot_limit(topology)), formula, 1);
    EXPECT_EQ(choose(topology, one_shot_limit(topology)).algorithm, DeviceAlgorithm::kOneShot);
    EXPECT_EQ(choose(topology, one_shot_limit(topology) + 1).algorithm, DeviceAlgorithm::kDirect);
    EXPECT_EQ(choose(topology, push_limit(topology)).algorithm, DeviceAlgorithm::kPush);
    EXPECT_LT(push_limit(topology), one_shot_limit(topology));
  }
  EXPECT_EQ(one_shot_limit(mesh(2)), std::numeric_limits<int64_t>::max());
}

TEST(DeviceSelect, TheArenaMustHoldIt) {
  DeviceTopology topology = mesh(4);
  topology.pushed_bytes = 2048;
  EXPECT_EQ(choose(topology, 1024).algorithm, DeviceAlgorithm::kPush);
  EXPECT_EQ(choose(topology, 1040).algorithm, DeviceAlgorithm::kOneShot);
  topology.stage_bytes = 4096;
  EXPECT_EQ(choose(topology, 4096).why,
            "4 ranks on a full mesh, up to 4096 bytes, what the stage holds: every rank sums everything");
  EXPECT_EQ(choose(topology, 4112).algorithm, DeviceAlgorithm::kDirect);
}

TEST(DeviceSelect, SaysWhy) {
  EXPECT_EQ(choose(mesh(1), 64).why, "one rank: nothing moves");
  EXPECT_EQ(choose(mesh(8), int64_t{1} << 30).why,
            "8 ranks on a full mesh, beyond 211428 bytes: each rank sums its slice for all, two barriers");
  EXPECT_EQ(choose(mesh(8), 64).why,
            "8 ranks on a full mesh, up to 39642 bytes: flags travel with the data, no barrier");
  EXPECT_EQ(choose(mesh(2), int64_t{1} << 30).why,
            "2 ranks on a full mesh, up to 1099511627776 bytes, what the stage holds: every rank sums everything");
}

TEST(DeviceSelect, TheLimitsAreSaid) {
  EXPECT_EQ(text_of_limits(mesh(8)),
            "all_reduces of up to 39642 bytes by push, up to 211428 bytes by one_shot, others by direct");
  DeviceTopology topology = mesh(2);
  topology.can_push = false;
  topology.stage_bytes = 8 << 20;
  EXPECT_EQ(text_of_limits(topology), "all_reduces of up to 8388608 bytes by one_shot, others by direct");
  topology.full_mesh = false;
  EXPECT_EQ(text_of_limits(topology), "");
  EXPECT_EQ(text_of_limits(mesh(1)), "");
}

TEST(DeviceSelect, PushNeedsKernelsSideBySide) {
  DeviceTopology topology = mesh(8);
  topology.can_push = false;
  EXPECT_EQ(choose(topology, 64).algorithm, DeviceAlgorithm::kOneShot);
}

TEST(DeviceSelect, AChoiceHasAPlan) {
  for (int world = 1; world <= 8; ++world) {
    for (const bool full_mesh : {false, true}) {
      DeviceTopology topology = mesh(world);
      topology.full_mesh = full_mesh;
      for (int c = 0; c < kCollectiveCount; ++c) {
        const auto what = static_cast<Collective>(c);
        for (const int64_t bytes : {0, 1 << 20, 1 << 30}) {
          const DeviceChoice choice = select_device_plan(topology, what, bytes);
          EXPECT_TRUE(can_plan(choice.algorithm, what)) << name_of(what);
          EXPECT_NE(choice.algorithm, DeviceAlgorithm::kRotatedRing);
          EXPECT_FALSE(choice.why.empty());
        }
      }
    }
  }
}

// The root receives as much as anybody does in an all_reduce, whoever sums.
TEST(DeviceSelect, AReduceIsTheRootsUpToTheSameSize) {
  for (int n = 2; n <= 8; ++n) {
    DeviceTopology topology = mesh(n);
    topology.stage_bytes = 0;
    const int64_t limit = one_shot_limit(topology);
    EXPECT_EQ(select_device_plan(topology, Collective::kReduce, limit).algorithm, DeviceAlgorithm::kOneShot);
    if (n == 2) continue;
    const DeviceChoice choice = select_device_plan(topology, Collective::kReduce, limit + 1);
    EXPECT_EQ(choice.algorithm, DeviceAlgorithm::kDirect);
    EXPECT_NE(choice.why.find("each rank sums its slice for the root"), std::string::npos) << choice.why;
  }
}

TEST(DeviceSelect, PartialMeshesSumRoundTheRing) {
  DeviceTopology topology = mesh(4);
  topology.full_mesh = false;
  EXPECT_EQ(choose(topology, 64).algorithm, DeviceAlgorithm::kRankRing);
  EXPECT_EQ(select_device_plan(topology, Collective::kReduceScatter, 64).algorithm, DeviceAlgorithm::kRankRing);
  EXPECT_EQ(select_device_plan(topology, Collective::kAllGather, 64).algorithm, DeviceAlgorithm::kDirect);
}

}  // namespace
}  // namespace ringdp::plan
