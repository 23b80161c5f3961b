#include "plan/catalog.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "harness.h"

namespace ringdp::plan {
namespace {

Problem sound_sum() {
  Problem problem;
  problem.world = 4;
  problem.rank = 3;
  problem.count = 100;
  return problem;
}

TEST(Catalog, RefusesWhatCannotBePlanned) {
  Problem malformed = sound_sum();
  malformed.root = 4;
  EXPECT_THROW(make_plan(AlgorithmChoice::kDirect, Order::kRank, malformed), Error);
  try {
    make_plan(AlgorithmChoice::kAuto, Order::kRank, sound_sum());
    FAIL() << "auto is a choice to be made before";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("algorithm=auto"), std::string::npos) << error.what();
  }
}

constexpr AlgorithmChoice kAlgorithms[] = {
    AlgorithmChoice::kArena,     AlgorithmChoice::kDirect, AlgorithmChoice::kExchange, AlgorithmChoice::kRing,
    AlgorithmChoice::kHierarchy, AlgorithmChoice::kTree,   AlgorithmChoice::kServer};

TEST(Catalog, PlansSayWhatTheyAre) {
  Problem problem = sound_sum();
  problem.hosts = {0, 2};
  for (const AlgorithmChoice algorithm : kAlgorithms) {
    const Plan plan = make_plan(algorithm, Order::kRank, problem);
    EXPECT_EQ(plan.algorithm, name_of(algorithm));
    EXPECT_EQ(plan.rank, problem.rank);
    EXPECT_EQ(plan.world, problem.world);
    EXPECT_EQ(plan.what, problem.what);
  }
}

TEST(Catalog, OnlyDirectSendsWireTypes) {
  Problem problem = sound_sum();
  problem.hosts = {0, 2};
  problem.wire = WireType::kInt8;
  for (const AlgorithmChoice algorithm : kAlgorithms) {
    try {
      EXPECT_EQ(make_plan(algorithm, Order::kRank, problem).wire, WireType::kInt8);
      EXPECT_EQ(algorithm, AlgorithmChoice::kDirect);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(std::string("algorithm=") + name_of(algorithm)), std::string::npos) << message;
      EXPECT_NE(message.find("wire=int8"), std::string::npos) << message;
    }
  }
}

TEST(Catalog, NamesAreTheSettingsOwn) {
  for (const char* name : {"auto", "arena", "direct", "exchange", "ring", "hierarchy", "tree", "halving", "server"}) {
    Settings settings;
    set_field(settings, "algorithm", name);
    EXPECT_STREQ(name_of(settings.algorithm), name);
  }
  for (const char* name : {"rank", "rotated", "tree"}) {
    Settings settings;
    set_field(settings, "order", name);
    EXPECT_STREQ(name_of(settings.order), name);
  }
}

TEST(Catalog, AWorldOfOneIsLocal) {
  Problem problem = sound_sum();
  problem.world = 1;
  problem.rank = 0;
  for (int what = 0; what < kCollectiveCount; ++what) {
    problem.what = static_cast<Collective>(what);
    const Plan plan = make_plan(AlgorithmChoice::kArena, Order::kRank, problem);
    EXPECT_EQ(plan.algorithm, "local");
    const size_t copies = problem.what == Collective::kBarrier ? 0 : 1;
    ASSERT_EQ(plan.channels[0].steps.size(), copies) << name_of(problem.what);
    for (const Step& step : plan.channels[0].steps) EXPECT_EQ(step.verb, Verb::kCopy);
  }
}

TEST(Catalog, AWorldOfOneKeepsItsOwnPart) {
  Problem problem = sound_sum();
  problem.world = 1;
  problem.rank = 0;
  problem.sends = problem.recvs = {7};
  problem.what = Collective::kAllToAll;
  EXPECT_EQ(make_plan(AlgorithmChoice::kArena, Order::kRank, problem).channels[0].steps.at(0).srcs[0].count, 7);
  problem.counts = {5};
  problem.what = Collective::kAllGather;
  EXPECT_EQ(make_plan(AlgorithmChoice::kArena, Order::kRank, problem).channels[0].steps.at(0).srcs[0].count, 5);
}

TEST(Catalog, AWorldOfOneDividesAnAverage) {
  Problem problem = sound_sum();
  problem.world = 1;
  problem.rank = 0;
  problem.op = ReduceOp::kAvg;
  const Plan plan = make_plan(AlgorithmChoice::kArena, Order::kRank, problem);
  ASSERT_EQ(plan.channels[0].steps.size(), 1u);
  EXPECT_EQ(plan.channels[0].steps[0].verb, Verb::kFold);
  EXPECT_TRUE(plan.channels[0].steps[0].finish);
}

// ---- order=tree

class TreeOrder : public ::testing::TestWithParam<std::tuple<AlgorithmChoice, Collective>> {};

TEST_P(TreeOrder, EqualsTheOracleOfTheBalancedTree) {
  const auto [algorithm, what] = GetParam();
  testing::check_everything(algorithm, Order::kTree, what);
}

INSTANTIATE_TEST_SUITE_P(
    Sums, TreeOrder,
    ::testing::Combine(::testing::Values(AlgorithmChoice::kArena, AlgorithmChoice::kDirect, AlgorithmChoice::kExchange,
                                         AlgorithmChoice::kServer, AlgorithmChoice::kHierarchy),
                       ::testing::Values(Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter)));

TEST(Catalog, OnlySumsOfFloatsFollowTheTree) {
  Problem problem = sound_sum();
  problem.world = 5;
  const auto program = [&](Order order) {
    const Plan plan = make_plan(AlgorithmChoice::kDirect, order, problem);
    return plan.programs.empty() ? "" : text_of(plan.programs.at(0));
  };
  EXPECT_EQ(program(Order::kTree), "0 1 + 2 + 3 4 + +");
  EXPECT_EQ(program(Order::kRank), "");
  problem.op = ReduceOp::kMax;
  EXPECT_EQ(program(Order::kTree), "");
  problem.op = ReduceOp::kAvg;
  problem.dtype = DType::kI32;
  EXPECT_EQ(program(Order::kTree), "");
  problem.dtype = DType::kC64;
  EXPECT_NE(program(Order::kTree), "");
  problem.what = Collective::kAllGather;
  EXPECT_EQ(program(Order::kTree), "");
}

TEST(Catalog, AlgorithmsWithAnOrderOfTheirOwnDoNotFollowTheTree) {
  Problem problem = sound_sum();
  problem.hosts = {0, 2};
  for (const AlgorithmChoice algorithm : {AlgorithmChoice::kRing, AlgorithmChoice::kTree}) {
    try {
      make_plan(algorithm, Order::kTree, problem);
      FAIL() << name_of(algorithm);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      const std::string named = std::string("algorithm=") + name_of(algorithm) + " has no plan for order=tree";
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
    Problem encoded = problem;
    encoded.wire = WireType::kInt8;
    EXPECT_THROW(make_plan(AlgorithmChoice::kDirect, Order::kTree, encoded), Error);
    Problem broadcast = problem;
    broadcast.what = Collective::kBroadcast;
    EXPECT_NO_THROW(make_plan(algorithm, Order::kTree, broadcast));
  }
}

TEST(Catalog, HalvingNeedsThatOrderAndAPowerOfTwoOfRanks) {
  const auto said = [](Order order, int world, Collective what = Collective::kAllReduce) -> std::string {
    Problem problem = sound_sum();
    problem.world = world;
    problem.rank = 0;
    problem.what = what;
    try {
      return make_plan(AlgorithmChoice::kHalving, order, problem).algorithm;
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(said(Order::kTree, 4), "halving");
  EXPECT_NE(said(Order::kRank, 4).find("algorithm=halving has no plan for order=rank"), std::string::npos);
  EXPECT_NE(said(Order::kTree, 6).find("algorithm=halving has no plan for world=6"), std::string::npos);
  EXPECT_EQ(said(Order::kRank, 6, Collective::kBroadcast), "direct");
}

// 1 TiB over 4 ranks: counts beyond 32 bits, and still a plan that can be built and held.
TEST(Catalog, HugeCountsKeepTheNumberOfStepsReasonable) {
  Problem problem = sound_sum();
  problem.count = int64_t{1} << 38;
  for (const Order order : {Order::kRank, Order::kRotated}) {
    for (const AlgorithmChoice algorithm : {AlgorithmChoice::kDirect, AlgorithmChoice::kExchange,
                                            AlgorithmChoice::kRing, AlgorithmChoice::kTree, AlgorithmChoice::kServer}) {
      for (const Channel& channel : make_plan(algorithm, order, problem).channels)
        EXPECT_LE(channel.steps.size(), 8200u);
    }
  }
}

TEST(Catalog, HugeCountsAreCoveredToTheLastElement) {
  Problem problem = sound_sum();
  problem.count = (int64_t{1} << 38) + 3;
  int64_t end = 0;
  for (const Channel& channel : make_plan(AlgorithmChoice::kRing, Order::kRank, problem).channels) {
    for (const Step& step : channel.steps) {
      for (const Ref& ref : step.dsts) {
        if (ref.space == Space::kOutput) end = std::max(end, ref.offset + ref.count * 4);
      }
    }
  }
  EXPECT_EQ(end, problem.count * 4);
}

// What one group may run: plans of all kinds, one after the other, on the same links and slots.
TEST(Catalog, PlansOfAllKindsFollowEachOther) {
  using testing::Case;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 random(seed);
    const int world = 1 + static_cast<int>(random() % 6);
    std::vector<Case> cases;
    for (int i = 0; i < 8; ++i) {
      Case c;
      c.algorithm = kAlgorithms[random() % std::size(kAlgorithms)];
      c.order = random() % 2 == 0 ? Order::kRank : Order::kRotated;
      c.problem.what = static_cast<Collective>(random() % kCollectiveCount);
      c.problem.world = world;
      c.problem.root = static_cast<int>(random() % world);
      c.problem.count = random() % 3 * (random() % 500);
      c.problem.segment_bytes = 100;
      c.problem.slot_bytes = 640;
      c.problem.hosts = {0};
      c.seed = seed * 100 + i;
      if (random() % 2 == 0) testing::make_uneven(c);
      cases.push_back(c);
    }
    testing::check_sequence(cases);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ringdp::plan
