#include "plan/arena.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class ArenaEverything : public ::testing::TestWithParam<int> {};

TEST_P(ArenaEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kArena, Order::kRank, static_cast<Collective>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Collectives, ArenaEverything, ::testing::Range(0, kCollectiveCount));

Case arena_case(Collective what, int world, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kArena;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.slot_bytes = 640;
  return c;
}

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
      cases.push_back(c);
    }
    check_sequence(cases);
    if (HasFatalFailure()) return;
  }
}

int64_t barriers_of(const Plan& plan) {
  int64_t waits = 0;
  for (const Step& step : plan.lanes[0].steps) waits += step.verb == Verb::kWait;
  return waits;
}

TEST(Arena, EveryPlanPassesABarrier) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    for (const Plan& plan : plans_of(arena_case(static_cast<Collective>(what), 4, 0))) {
      EXPECT_EQ(plan.lanes.size(), 1u);
      EXPECT_EQ(barriers_of(plan), 1) << name_of(plan.what);
    }
  }
}

TEST(Arena, SmallAllReducesAreOneShot) {
  Problem problem;
  for (const int world : {2, 3}) {
    const int64_t limit = world == 2 ? kOneShotBytesOfTwo : kOneShotBytes;
    problem.world = world;
    problem.count = limit / 4;
    EXPECT_TRUE(is_one_shot(problem));
    EXPECT_EQ(barriers_of(arena(problem)), 1);
    ++problem.count;
    EXPECT_FALSE(is_one_shot(problem));
    EXPECT_EQ(barriers_of(arena(problem)), 2);
  }
  problem.count = 1024;
  problem.slot_bytes = 4095;
  EXPECT_FALSE(is_one_shot(problem)) << "4096 bytes do not fit into the slot";
}

// M stages cost M+1 barriers; every byte is copied in, folded and copied out except where the own slice saves it.
TEST(Arena, StagedAllReduceTouchesMemoryAsOftenAsCounted) {
  const int world = 4;
  const int64_t stage_elements = world * (640 / world / 64 * 64) / 4, stages = 5;
  const Case c = arena_case(Collective::kAllReduce, world, stages * stage_elements);
  const int64_t tensor = c.problem.count * 4, slice = tensor / world;
  for (const Plan& plan : plans_of(c)) {
    const collective::PlanTotals sums = collective::totals(plan);
    EXPECT_EQ(barriers_of(plan), stages + 1);
    EXPECT_EQ(sums.memory_read, (tensor - slice) + world * slice + (tensor - slice));     // in, fold, out
    EXPECT_EQ(sums.memory_written, (tensor - slice) + 2 * slice + (tensor - slice));
    EXPECT_EQ(sums.bytes_sent, 0);
    EXPECT_EQ(sums.rounds, 0);
  }
}

TEST(Arena, SlotTooSmallForTheWorldIsRefused) {
  Problem problem;
  problem.world = 11;
  problem.slot_bytes = 64 * 11 - 1;
  try {
    arena(problem);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("slot_bytes=703"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
