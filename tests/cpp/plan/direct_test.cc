#include "plan/direct.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class DirectEverything : public ::testing::TestWithParam<int> {};

TEST_P(DirectEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kDirect, Order::kRank, static_cast<Collective>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Collectives, DirectEverything, ::testing::Range(0, kCollectiveCount));

TEST(Direct, SendsTheTextbookBytesInTwoRounds) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c;
      c.problem.dtype = dtype;
      c.problem.world = world;
      c.problem.count = 100 * world;
      c.problem.segment_bytes = 128;
      const int64_t tensor = c.problem.count * size_of(dtype);
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, 2 * (world - 1) * tensor / world) << text_of(c);
        EXPECT_EQ(sums.bytes_received, sums.bytes_sent) << text_of(c);
        EXPECT_EQ(sums.rounds, 2) << text_of(c);
      }
    }
  }
}

Case moves(Collective what, int world) {
  Case c;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.root = world / 2;
  c.problem.count = 1000;
  c.seed = world;
  make_uneven(c);
  return c;
}

// Every part but the own goes over a link once, in one round.
TEST(Direct, MovesSendEachPartOnce) {
  for (int world = 2; world <= 9; ++world) {
    for (const Collective what : {Collective::kAllGather, Collective::kGather, Collective::kScatter}) {
      const Case c = moves(what, world);
      int64_t all = 0;
      for (const int64_t part : c.problem.counts) all += 4 * part;
      for (const Plan& plan : plans_of(c)) {
        const bool is_root = plan.rank == c.problem.root;
        const int64_t mine = 4 * c.problem.counts[plan.rank];
        const int64_t wanted = what == Collective::kAllGather ? (world - 1) * mine
                               : what == Collective::kGather  ? (is_root ? 0 : mine)
                                                              : (is_root ? all - mine : 0);
        EXPECT_EQ(collective::totals(plan).bytes_sent, wanted) << text_of(c) << " rank " << plan.rank;
        EXPECT_LE(collective::totals(plan).rounds, 1) << text_of(c);
      }
    }
  }
}

// Only a pair knows whether its parts are empty: each has exactly one announced step, also of nothing.
TEST(Direct, AllToAllAnnouncesEveryTransferOnce) {
  for (int world = 2; world <= 9; ++world) {
    const Case c = moves(Collective::kAllToAll, world);
    for (const Plan& plan : plans_of(c)) {
      std::vector<int> sent(world), received(world);
      for (const Lane& lane : plan.lanes) {
        for (const Step& step : lane.steps) {
          EXPECT_EQ(step.announce, step.verb != Verb::kCopy);
          if (step.verb == Verb::kSend && ++sent[step.peer]) {
            EXPECT_EQ(step.srcs[0].count, c.sends[plan.rank][step.peer]) << text_of(c);
          }
          if (step.verb == Verb::kRecv) ++received[step.peer];
        }
      }
      std::vector<int> once(world, 1);
      once[plan.rank] = 0;
      EXPECT_EQ(sent, once) << text_of(c);
      EXPECT_EQ(received, once) << text_of(c);
    }
  }
}

TEST(Direct, EveryRankStartsWithAnotherPeer) {
  Case c;
  c.problem.world = 5;
  c.problem.count = 100;
  const std::vector<Plan> plans = plans_of(c);
  for (int r = 0; r < 5; ++r) EXPECT_EQ(plans[r].lanes[0].steps[0].peer, (r + 1) % 5);
}

}  // namespace
}  // namespace ringdp::plan::testing
