// The arena's moves: stages by the largest part, and who copies how much.
#include <gtest/gtest.h>

#include "arena_case.h"
#include "plan/arena.h"

namespace ringdp::plan::testing {
namespace {

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
      for (const Step& step : plan.lanes[0].steps) {
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
