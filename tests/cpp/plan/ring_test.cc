#include "plan/ring.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class RingEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(RingEverything, EqualsTheSerialOracle) { check_everything(AlgorithmChoice::kRing, Order::kRank, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Collectives, RingEverything,
                         ::testing::Values(Collective::kBroadcast, Collective::kAllGather, Collective::kReduce));

Case ring_case(Collective what, int world) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = 1000;
  c.problem.segment_bytes = 400;
  return c;
}

TEST(Ring, AllGatherSendsEveryPartButOneOnce) {
  for (int world = 2; world <= 9; ++world) {
    const std::vector<Plan> plans = plans_of(ring_case(Collective::kAllGather, world));
    EXPECT_EQ(rounds_of(plans), world - 1);
    for (const Plan& plan : plans) EXPECT_EQ(collective::totals(plan).bytes_sent, (world - 1) * 4000) << world;
  }
}

TEST(Ring, AllGatherLeavesOutEmptyParts) {
  Case c = ring_case(Collective::kAllGather, 3);
  c.problem.counts = {0, 1000, 10};
  const std::vector<Plan> plans = plans_of(c);
  for (int r = 0; r < 3; ++r) {
    const int64_t not_sent = c.problem.counts[(r + 1) % 3];  // the next rank's own
    EXPECT_EQ(collective::totals(plans[r]).bytes_sent, 4 * (1010 - not_sent)) << r;
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

TEST(Ring, RootedCollectivesHaveOneSchedule) {
  for (const Collective what : {Collective::kReduce, Collective::kBroadcast}) {
    Case c = ring_case(what, 4);
    const std::string in_rank_order = collective::to_json(plans_of(c)[1]);
    c.order = Order::kRotated;
    EXPECT_EQ(collective::to_json(plans_of(c)[1]), in_rank_order) << name_of(what);
    check(c);
  }
}

TEST(Ring, WithoutARingFormThePlanIsDirect) {
  for (const Collective what : {Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    Case c = ring_case(what, 4);
    const std::string ring = collective::to_json(plans_of(c)[1]);
    c.algorithm = AlgorithmChoice::kDirect;
    EXPECT_EQ(collective::to_json(plans_of(c)[1]), ring) << name_of(what);
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
