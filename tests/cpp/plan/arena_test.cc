#include "plan/arena.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

// ---- channel

Problem problem_with(int64_t slot_bytes) {
  Problem problem;
  problem.dtype = DType::kF64;
  problem.slot_bytes = slot_bytes;
  return problem;
}

TEST(ArenaChannel, PiecesAreWholeCacheLinesOfTheSlot) {
  Builder builder("test", problem_with(1000));
  const ArenaChannel channel(builder, problem_with(1000), 0, 3, 4);
  EXPECT_EQ(channel.slot_elements(), 1000 / 8);
  EXPECT_EQ(channel.piece_elements(), 1000 / 4 / 64 * 64 / 8);
  const Ref last = channel.piece(2, 5, 3, channel.piece_elements());
  EXPECT_EQ(last.index, 2);
  EXPECT_EQ(last.stage, 5);
  EXPECT_EQ(last.offset % 64, 0);
  EXPECT_LE(last.offset + last.count * 8, 1000);
}

TEST(ArenaChannel, OwnMemoryTakesItsPlaceInRankOrder) {
  Builder builder("test", problem_with(1024));
  const ArenaChannel channel(builder, problem_with(1024), 1, 3, 3);
  const Ref own = builder.input(0, {4, 8});
  const std::vector<Ref> refs = channel.in_rank_order(own, 0, 2);
  ASSERT_EQ(refs.size(), 3u);
  EXPECT_EQ(refs[1].space, Space::kInput);
  for (const int member : {0, 2}) {
    EXPECT_EQ(refs[member].space, Space::kSlot);
    EXPECT_EQ(refs[member].index, member);
    EXPECT_EQ(refs[member].count, own.count);
  }
}

TEST(ArenaChannel, KnowsWhetherItPassedABarrier) {
  Builder builder("test", problem_with(1024));
  ArenaChannel channel(builder, problem_with(1024), 0, 2, 2);
  EXPECT_FALSE(channel.has_barrier());
  channel.barrier();
  EXPECT_TRUE(channel.has_barrier());
}

TEST(ArenaChannel, ASlotTooSmallForTheRanksIsRefused) {
  const Problem problem = problem_with(64 * 11 - 1);
  Builder builder("test", problem);
  try {
    ArenaChannel(builder, problem, 0, 11, 11);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("slot_bytes=703"), std::string::npos) << error.what();
  }
}

// ---- any plan

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
      EXPECT_EQ(plan.channels.size(), 1u);
      EXPECT_EQ(barriers_of(plan), 1) << name_of(plan.what);
    }
  }
}

// Sizes are known to pairs only, so no rank could tell how many stages all_to_all has.
TEST(Arena, AllToAllRunsOverLinks) {
  EXPECT_EQ(plans_of(arena_case(Collective::kAllToAll, 4, 10))[0].algorithm, "direct");
}

// ---- sums

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
    EXPECT_EQ(sums.memory_read, (tensor - slice) + world * slice + (tensor - slice));  // in, fold, out
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

// ---- moves

Case move_case(Collective what) {
  Case c = arena_case(what, 4, 0);
  c.problem.counts = {0, 7, 1000, 200};
  c.problem.root = 3;
  return c;
}

constexpr int64_t kAll = 4 * 1207;

TEST(ArenaMove, TheLargestPartGivesTheStages) {
  const std::pair<Collective, int64_t> stages[] = {{Collective::kAllGather, ceil_div(4000, kSlotBytes)},
                                                   {Collective::kGather, ceil_div(4000, kSlotBytes)},
                                                   {Collective::kScatter, ceil_div(4000, piece_bytes(4))}};
  for (const auto& [what, barriers] : stages) {
    for (const Plan& plan : plans_of(move_case(what))) {
      EXPECT_EQ(barriers_of(plan), barriers) << name_of(what) << " rank " << plan.rank;
    }
  }
}

// The parity of the stages picks the slot of the next collective: ranks with small parts must not count fewer.
TEST(ArenaMove, EveryRankNamesEveryStage) {
  for (const Collective what : {Collective::kAllGather, Collective::kGather, Collective::kScatter}) {
    for (const Plan& plan : plans_of(move_case(what))) {
      int32_t last = -1;
      for (const Step& step : plan.channels[0].steps) {
        for (const auto* refs : {&step.srcs, &step.dsts}) {
          for (const Ref& ref : *refs) last = ref.space == Space::kSlot ? std::max(last, ref.stage) : last;
        }
      }
      EXPECT_EQ(last + 1, barriers_of(plan)) << name_of(what) << " rank " << plan.rank;
    }
  }
}

TEST(ArenaMove, OwnPartsOfTheRootPassNoSlot) {
  for (const Plan& plan : plans_of(move_case(Collective::kGather))) {
    const int64_t mine = 4 * move_case(Collective::kGather).problem.counts[plan.rank];
    EXPECT_EQ(collective::totals(plan).memory_read, plan.rank == 3 ? kAll : mine) << plan.rank;
  }
  for (const Plan& plan : plans_of(move_case(Collective::kScatter))) {
    const int64_t mine = 4 * move_case(Collective::kScatter).problem.counts[plan.rank];
    EXPECT_EQ(collective::totals(plan).memory_read, plan.rank == 3 ? kAll : mine) << plan.rank;
    EXPECT_EQ(collective::totals(plan).bytes_sent, 0);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
