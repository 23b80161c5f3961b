#include "plan/ring.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class RingEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(RingEverything, EqualsTheSerialOracle) { check_everything(AlgorithmChoice::kRing, Order::kRank, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Collectives, RingEverything,
                         ::testing::Values(Collective::kBroadcast, Collective::kAllGather, Collective::kBarrier));

Case ring_case(Collective what, int world) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = 1000;
  c.problem.segment_bytes = 400;
  return c;
}

int64_t rounds_of(const std::vector<Plan>& plans) {
  int64_t rounds = 0;
  for (const Plan& plan : plans) rounds = std::max(rounds, collective::totals(plan).rounds);
  return rounds;
}

TEST(Ring, AllGatherSendsEveryPartButOneOnce) {
  for (int world = 2; world <= 9; ++world) {
    const std::vector<Plan> plans = plans_of(ring_case(Collective::kAllGather, world));
    EXPECT_EQ(rounds_of(plans), world - 1);
    for (const Plan& plan : plans) EXPECT_EQ(collective::totals(plan).bytes_sent, (world - 1) * 4000) << world;
  }
}

TEST(Ring, BroadcastIsAPipelinedChain) {
  const int64_t segments = 10;
  for (int world = 2; world <= 9; ++world) {
    Case c = ring_case(Collective::kBroadcast, world);
    c.problem.root = world - 1;
    const std::vector<Plan> plans = plans_of(c);
    EXPECT_EQ(rounds_of(plans), segments + world - 2) << world;
    for (int r = 0; r < world; ++r) {
      const bool end_of_chain = r == world - 2;
      EXPECT_EQ(collective::totals(plans[r]).bytes_sent, end_of_chain ? 0 : 4000) << world << " rank " << r;
    }
  }
}

TEST(Ring, OrderPicksTheSchedule) {
  Case c = ring_case(Collective::kAllReduce, 4);
  EXPECT_EQ(plans_of(c)[0].algorithm, "ring");
  c.order = Order::kRotated;
  EXPECT_EQ(plans_of(c)[0].algorithm, "ring/rotated");
}

}  // namespace
}  // namespace ringdp::plan::testing
