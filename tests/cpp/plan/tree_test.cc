#include "plan/tree.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class TreeEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(TreeEverything, EqualsTheOracleOfItsOrder) {
  check_everything(AlgorithmChoice::kTree, Order::kRank, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Collectives, TreeEverything,
                         ::testing::Values(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast));

Case tree_case(Collective what, int world, int64_t segments) {
  Case c;
  c.algorithm = AlgorithmChoice::kTree;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.root = world / 2;
  c.problem.segment_bytes = 400;
  c.problem.count = 100 * segments;
  return c;
}

int depth_of(int world) {
  int depth = 0;
  for (int reached = 1; reached < world; reached *= 2) ++depth;
  return depth;
}

TEST(Tree, TakesLogarithmicallyManyRounds) {
  for (int world = 2; world <= 17; ++world) {
    for (const int64_t segments : {1, 5}) {
      const int64_t one_way = depth_of(world), tail = segments - 1;
      EXPECT_EQ(rounds_of(plans_of(tree_case(Collective::kAllReduce, world, segments))), 2 * one_way + tail) << world;
      EXPECT_EQ(rounds_of(plans_of(tree_case(Collective::kBroadcast, world, segments))), one_way + tail) << world;
      EXPECT_EQ(rounds_of(plans_of(tree_case(Collective::kReduce, world, segments))), one_way + tail) << world;
    }
  }
}

// Each edge of the tree carries the tensor once each way: N-1 edges, as many at the root as the tree is deep.
TEST(Tree, EveryEdgeCarriesTheTensorOnce) {
  for (int world = 2; world <= 17; ++world) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
      const Case c = tree_case(what, world, 3);
      const int64_t tensor = 4 * c.problem.count, ways = what == Collective::kAllReduce ? 2 : 1;
      const int root = what == Collective::kAllReduce ? 0 : c.problem.root;
      int64_t sent = 0;
      for (const Plan& plan : plans_of(c)) sent += collective::totals(plan).bytes_sent;
      EXPECT_EQ(sent, ways * (world - 1) * tensor) << text_of(c);
      const collective::PlanTotals at_root = collective::totals(plans_of(c)[root]);
      EXPECT_EQ(at_root.bytes_sent + at_root.bytes_received, ways * depth_of(world) * tensor) << text_of(c);
    }
  }
}

// Leaves send 16-bit floats as they are; a partial sum is not rounded before it is complete.
TEST(Tree, PartialSumsOfHalvesAreWide) {
  Case c = tree_case(Collective::kReduce, 8, 1);
  c.problem.dtype = DType::kBF16;
  c.problem.root = 0;
  for (const Plan& plan : plans_of(c)) {
    const int64_t element = plan.rank == 0 ? 0 : plan.rank % 2 == 1 ? 2 : 4;
    EXPECT_EQ(collective::totals(plan).bytes_sent, element * c.problem.count) << plan.rank;
  }
}

// What the kernels can fold: one partial sum and raw values, or partial sums only, into a partial sum.
TEST(Tree, FoldsAreOfKindsThatKernelsKnow) {
  for (int world = 2; world <= 17; ++world) {
    for (const Plan& plan : plans_of(tree_case(Collective::kAllReduce, world, 1))) {
      for (const Channel& channel : plan.channels) {
        for (const Step& step : channel.steps) {
          const auto wide = [](const Ref& ref) { return ref.form == Form::kWide; };
          if (step.verb != Verb::kFold || std::none_of(step.srcs.begin() + 1, step.srcs.end(), wide)) continue;
          EXPECT_TRUE(std::all_of(step.srcs.begin(), step.srcs.end(), wide)) << world << " rank " << plan.rank;
          EXPECT_TRUE(std::all_of(step.dsts.begin(), step.dsts.end(), wide)) << world << " rank " << plan.rank;
          EXPECT_FALSE(step.finish);
        }
      }
    }
  }
}

TEST(Tree, ScratchIsBoundedWhateverTheCount) {
  for (const int64_t segments : {10, 1000}) {
    const Plan plan = plans_of(tree_case(Collective::kAllReduce, 8, segments))[0];
    EXPECT_LE(plan.scratch_bytes, (3 + 1) * 4 * align_up(400, 64)) << segments;  // children and the sum x window
  }
}

TEST(Tree, OtherCollectivesAreDirect) {
  for (const Collective what : {Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier,
                                Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    EXPECT_EQ(plans_of(tree_case(what, 4, 1))[1].algorithm, "direct") << name_of(what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
