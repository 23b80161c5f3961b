#include "plan/server.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class ServerEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(ServerEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kServer, Order::kRank, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Collectives, ServerEverything,
                         ::testing::Values(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast));

Case server_case(Collective what, int world) {
  Case c;
  c.algorithm = AlgorithmChoice::kServer;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.root = world / 2;
  c.problem.count = 10'000;
  c.problem.segment_bytes = 1024;
  return c;
}

// 2(N-1)S pass the server, S each way everyone else.
TEST(Server, AllReducePassesEverythingThroughRankZero) {
  const int64_t tensor = 40'000;
  for (int world = 2; world <= 9; ++world) {
    for (const Plan& plan : plans_of(server_case(Collective::kAllReduce, world))) {
      const collective::PlanTotals sums = collective::totals(plan);
      const int64_t one_way = plan.rank == 0 ? (world - 1) * tensor : tensor;
      EXPECT_EQ(sums.bytes_sent, one_way) << world << " rank " << plan.rank;
      EXPECT_EQ(sums.bytes_received, one_way) << world << " rank " << plan.rank;
      EXPECT_EQ(sums.rounds, 2);
    }
  }
}

TEST(Server, RootedCollectivesGoOneWay) {
  const int64_t tensor = 40'000;
  for (int world = 2; world <= 9; ++world) {
    for (const Collective what : {Collective::kReduce, Collective::kBroadcast}) {
      const Case c = server_case(what, world);
      for (const Plan& plan : plans_of(c)) {
        const bool is_root = plan.rank == c.problem.root, sends = is_root == (what == Collective::kBroadcast);
        const int64_t peers = is_root ? world - 1 : 1;
        EXPECT_EQ(plan.algorithm, "server");
        EXPECT_EQ(collective::totals(plan).bytes_sent, sends ? peers * tensor : 0) << text_of(c);
        EXPECT_EQ(collective::totals(plan).bytes_received, sends ? 0 : peers * tensor) << text_of(c);
      }
    }
  }
}

TEST(Server, ScratchIsPeersTimesWindowTimesSegment) {
  const std::vector<Plan> plans = plans_of(server_case(Collective::kAllReduce, 4));
  EXPECT_EQ(plans[0].scratch_bytes, 3 * 4 * 1024);
  EXPECT_EQ(plans[1].scratch_bytes, 0);
}

TEST(Server, OtherCollectivesAreDirect) {
  for (const Collective what : {Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier,
                                Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    EXPECT_EQ(plans_of(server_case(what, 4))[1].algorithm, "direct") << name_of(what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
