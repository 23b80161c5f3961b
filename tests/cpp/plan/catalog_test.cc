#include "plan/catalog.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringdp::plan {
namespace {

Problem sound() {
  Problem problem;
  problem.world = 4;
  problem.rank = 3;
  problem.count = 100;
  return problem;
}

void expect_refused(const std::function<void(Problem&)>& spoil, const std::string& named,
                    AlgorithmChoice algorithm = AlgorithmChoice::kDirect) {
  Problem problem = sound();
  spoil(problem);
  try {
    make_plan(algorithm, Order::kRank, problem);
    FAIL() << "accepted a bad " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Catalog, RefusesMalformedProblemsByName) {
  expect_refused([](Problem& p) { p.world = 0; }, "world=0");
  expect_refused([](Problem& p) { p.rank = 4; }, "rank=4");
  expect_refused([](Problem& p) { p.rank = -1; }, "rank=-1");
  expect_refused([](Problem& p) { p.root = 4; }, "root=4");
  expect_refused([](Problem& p) { p.count = -1; }, "count=-1");
  expect_refused([](Problem& p) { p.segment_bytes = 0; }, "segment_bytes=0");
  expect_refused([](Problem& p) { p.slot_bytes = 0; }, "slot_bytes=0");
  expect_refused([](Problem& p) { p.count = INT64_MAX / 8; }, "does not fit");
}

TEST(Catalog, RefusesAlgorithmsWithoutAPlan) {
  for (const AlgorithmChoice algorithm :
       {AlgorithmChoice::kAuto, AlgorithmChoice::kHierarchy, AlgorithmChoice::kTree, AlgorithmChoice::kServer}) {
    expect_refused([](Problem&) {}, std::string("algorithm=") + name_of(algorithm), algorithm);
  }
}

TEST(Catalog, PlansSayWhatTheyAre) {
  const Problem problem = sound();
  for (const AlgorithmChoice algorithm : {AlgorithmChoice::kArena, AlgorithmChoice::kDirect, AlgorithmChoice::kRing}) {
    const Plan plan = make_plan(algorithm, Order::kRank, problem);
    EXPECT_EQ(plan.algorithm, name_of(algorithm));
    EXPECT_EQ(plan.rank, problem.rank);
    EXPECT_EQ(plan.world, problem.world);
    EXPECT_EQ(plan.what, problem.what);
  }
}

TEST(Catalog, NamesAreTheSettingsOwn) {
  for (const char* name : {"auto", "arena", "direct", "ring", "hierarchy", "tree", "server"}) {
    Settings settings;
    set_field(settings, "algorithm", name);
    EXPECT_STREQ(name_of(settings.algorithm), name);
  }
  for (const char* name : {"rank", "rotated"}) {
    Settings settings;
    set_field(settings, "order", name);
    EXPECT_STREQ(name_of(settings.order), name);
  }
}

TEST(Catalog, AWorldOfOneIsLocal) {
  Problem problem = sound();
  problem.world = 1;
  problem.rank = 0;
  for (int what = 0; what < kCollectiveCount; ++what) {
    problem.what = static_cast<Collective>(what);
    const Plan plan = make_plan(AlgorithmChoice::kArena, Order::kRank, problem);
    EXPECT_EQ(plan.algorithm, "local");
    const size_t copies = problem.what == Collective::kBarrier ? 0 : 1;
    ASSERT_EQ(plan.lanes[0].steps.size(), copies) << name_of(problem.what);
    for (const Step& step : plan.lanes[0].steps) EXPECT_EQ(step.verb, Verb::kCopy);
  }
}

// 1 TiB over 4 ranks: counts beyond 32 bits, and still a plan that can be built and held.
TEST(Catalog, HugeCountsKeepTheNumberOfStepsReasonable) {
  Problem problem = sound();
  problem.count = int64_t{1} << 38;
  for (const Order order : {Order::kRank, Order::kRotated}) {
    for (const AlgorithmChoice algorithm : {AlgorithmChoice::kDirect, AlgorithmChoice::kRing}) {
      for (const Lane& lane : make_plan(algorithm, order, problem).lanes) EXPECT_LE(lane.steps.size(), 8200u);
    }
  }
}

TEST(Catalog, HugeCountsAreCoveredToTheLastElement) {
  Problem problem = sound();
  problem.count = (int64_t{1} << 38) + 3;
  int64_t end = 0;
  for (const Lane& lane : make_plan(AlgorithmChoice::kRing, Order::kRank, problem).lanes) {
    for (const Step& step : lane.steps) {
      for (const Ref& ref : step.dsts) {
        if (ref.space == Space::kOutput) end = std::max(end, ref.offset + ref.count * 4);
      }
    }
  }
  EXPECT_EQ(end, problem.count * 4);
}

}  // namespace
}  // namespace ringdp::plan
