#include "plan/arena.h"

#include <gtest/gtest.h>

#include "arena_case.h"

namespace ringdp::plan::testing {
namespace {

class ArenaEverything : public ::testing::TestWithParam<int> {};

TEST_P(ArenaEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kArena, Order::kRank, static_cast<Collective>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Collectives, ArenaEverything, ::testing::Range(0, kCollectiveCount));

// Nothing but the barriers of the plans keeps a fast rank's next collective out of the slots of this one.
TEST(Arena, CollectivesFollowEachOtherWithoutRaces) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const int world = 2 + static_cast<int>(random() % 5);
    std::vector<Case> cases;
    for (int i = 0; i < 8; ++i) {
      Case c = arena_case(static_cast<Collective>(random() % kCollectiveCount), world, random() % 3 * (random() % 700));
      c.problem.root = static_cast<int>(random() % world);
      c.seed = seed * 100 + i;
      if (random() % 2 == 0) make_uneven(c);
      cases.push_back(c);
    }
    check_sequence(cases);
    if (HasFatalFailure()) return;
  }
}

TEST(Arena, EveryPlanPassesABarrier) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    if (static_cast<Collective>(what) == Collective::kAllToAll) continue;  // a plan over links
    for (const Plan& plan : plans_of(arena_case(static_cast<Collective>(what), 4, 0))) {
      EXPECT_EQ(plan.lanes.size(), 1u);
      EXPECT_EQ(barriers_of(plan), 1) << name_of(plan.what);
    }
  }
}

// Sizes are known to pairs only, so no rank could tell how many stages all_to_all has.
TEST(Arena, AllToAllRunsOverLinks) {
  EXPECT_EQ(plans_of(arena_case(Collective::kAllToAll, 4, 10))[0].algorithm, "direct");
}

}  // namespace
}  // namespace ringdp::plan::testing
