// The arena's sums: one shot or stages, and how often they touch memory.
#include <gtest/gtest.h>

#include "arena_case.h"
#include "plan/arena.h"

namespace ringdp::plan::testing {
namespace {

TEST(ArenaReduce, SmallAllReducesAreOneShot) {
  Problem problem;
  for (const int64_t limit : {4096, 32768}) {
    problem.world = 3;
    problem.one_shot_bytes = limit;
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
  problem.slot_bytes = 4096;
  EXPECT_TRUE(is_one_shot(problem));
  problem.one_shot_bytes = 0;
  EXPECT_FALSE(is_one_shot(problem));
}

// M stages cost M+1 barriers; every byte is copied in, folded and copied out except where the own slice saves it.
TEST(ArenaReduce, StagedAllReduceTouchesMemoryAsOftenAsCounted) {
  const int world = 4;
  const int64_t stage_elements = world * piece_bytes(world) / 4, stages = 5;
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

// As all_reduce, but nobody copies out except the root, and a piece's owner writes its result for the root only.
TEST(ArenaReduce, StagedReduceIsCopiedOutByTheRootOnly) {
  const int world = 4;
  const int64_t stage_elements = world * piece_bytes(world) / 4, stages = 5;
  Case c = arena_case(Collective::kReduce, world, stages * stage_elements);
  c.problem.root = 2;
  const int64_t tensor = c.problem.count * 4, slice = tensor / world;
  for (const Plan& plan : plans_of(c)) {
    const collective::PlanTotals sums = collective::totals(plan);
    const int64_t copied_out = plan.rank == c.problem.root ? tensor - slice : 0;
    EXPECT_EQ(barriers_of(plan), stages + 1);
    EXPECT_EQ(sums.memory_read, (tensor - slice) + world * slice + copied_out);
    EXPECT_EQ(sums.memory_written, (tensor - slice) + slice + copied_out);
  }
}

TEST(ArenaReduce, OneShotReduceIsFoldedByTheRootOnly) {
  Case c = arena_case(Collective::kReduce, 4, 100);
  c.problem.root = 1;
  for (const Plan& plan : plans_of(c)) {
    const bool is_root = plan.rank == c.problem.root;
    EXPECT_EQ(barriers_of(plan), 1);
    EXPECT_EQ(collective::totals(plan).memory_read, is_root ? 4 * 400 : 400);
    EXPECT_EQ(collective::totals(plan).memory_written, 400);
  }
}

TEST(ArenaReduce, TheLargestPartGivesTheStagesOfAReduceScatter) {
  Case c = arena_case(Collective::kReduceScatter, 4, 0);
  c.problem.counts = {0, 1, 3 * piece_bytes(4) / 4 + 1, 5};
  for (const Plan& plan : plans_of(c)) EXPECT_EQ(barriers_of(plan), 4) << plan.rank;
}

}  // namespace
}  // namespace ringdp::plan::testing
