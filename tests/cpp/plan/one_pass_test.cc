#include "plan/one_pass.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "harness.h"

namespace ringdp::plan::testing {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduce,    Collective::kReduceScatter,
                                       Collective::kAllGather, Collective::kBroadcast, Collective::kGather,
                                       Collective::kScatter,   Collective::kAllToAll};

Case heap_case(Collective what, int world, int64_t count) {
  Case c = arena_case(what, world, count);
  c.problem.in_heaps = true;
  return c;
}

TEST(OnePass, EveryCollectiveGivesTheOraclesBits) {
  uint64_t seed = 0;
  for (const Collective what : kCollectives) {
    for (int world = 2; world <= 9; ++world) {
      for (const int64_t count : interesting_counts(world)) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
          Case c = heap_case(what, world, count);
          c.seed = ++seed;
          c.in_place = seed % 2 == 0;
          c.problem.dtype = dtype;
          c.problem.op = is_floating(dtype) && seed % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
          c.order = seed / 4 % 2 == 0 ? Order::kRank : Order::kTree;
          c.problem.root = static_cast<int>(seed % world);
          if (seed / 2 % 2 == 0 && what != Collective::kAllToAll) make_uneven(c);
          check(c);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(OnePass, FollowsAndIsFollowedByPlansWithSlots) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<Case> cases;
    for (const Collective what : kCollectives) {
      cases.push_back(heap_case(what, 3, 500));
      cases.push_back(arena_case(what, 3, 500));
    }
    for (Case& c : cases) c.seed = seed;
    check_sequence(cases);
  }
}

int64_t world_total(const std::vector<Plan>& plans, int64_t collective::PlanTotals::*field) {
  int64_t sum = 0;
  for (const Plan& plan : plans) sum += collective::totals(plan).*field;
  return sum;
}

// The floor of DESIGN: every input byte is read once, every output byte written once.
TEST(OnePass, ReadsEveryInputOnceAndWritesEveryOutputOnce) {
  const int world = 4;
  const int64_t count = 1 << 14, bytes = count * 4;
  const std::tuple<Collective, int64_t, int64_t> rows[] = {
      {Collective::kAllReduce, world * bytes, world * bytes},
      {Collective::kReduce, world * bytes, bytes},
      {Collective::kReduceScatter, world * world * bytes, world * bytes},  // parts are of `count`
      {Collective::kAllGather, world * world * bytes, world * world * bytes},
      {Collective::kBroadcast, (world - 1) * bytes, (world - 1) * bytes},
      {Collective::kGather, world * bytes, world * bytes},
      {Collective::kScatter, world * bytes, world * bytes},
      {Collective::kAllToAll, world * world * bytes, world * world * bytes}};
  for (const auto& [what, read, written] : rows) {
    const std::vector<Plan> plans = plans_of(heap_case(what, world, count));
    EXPECT_EQ(world_total(plans, &collective::PlanTotals::memory_read), read) << name_of(what);
    EXPECT_EQ(world_total(plans, &collective::PlanTotals::memory_written), written) << name_of(what);
    EXPECT_EQ(world_total(plans, &collective::PlanTotals::bytes_sent), 0);
    for (const Plan& plan : plans) EXPECT_EQ(barriers_of(plan), 1) << name_of(what);
  }
}

TEST(OnePass, SlicesShareNoCacheLine) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kC128}) {
    Case c = heap_case(Collective::kAllReduce, 7, 100'003);
    c.problem.dtype = dtype;
    c.problem.op = ReduceOp::kSum;
    int64_t covered = 0;
    for (const Plan& plan : plans_of(c)) {
      const Step& fold = plan.channels[0].steps[0];
      EXPECT_EQ(fold.srcs[0].offset % 64, 0);
      EXPECT_EQ(fold.srcs[0].offset, covered) << "slices follow each other";
      covered += bytes_of(plan, fold.srcs[0]);
    }
    EXPECT_EQ(covered, c.problem.count * size_of(dtype));
  }
}

TEST(OnePass, OnlyLargeTensorsAreWorthIt) {
  for (const Collective what : kCollectives) {
    for (const int64_t limit : {4096 * 3, 32768 * 3}) {
      const int world = 3;
      Problem problem = heap_case(what, world, 0).problem;
      problem.root = 1;
      problem.one_pass_bytes = limit;
      const int64_t parts = problem.has_parts() || what == Collective::kAllToAll ? world : 1;
      problem.count = limit / 4 / parts;
      EXPECT_FALSE(is_for_one_pass(problem)) << name_of(what);
      ++problem.count;
      EXPECT_TRUE(is_for_one_pass(problem)) << name_of(what);
    }
  }
  Problem uneven = heap_case(Collective::kAllToAll, 2, 1 << 20).problem;
  uneven.sends = {1 << 20, 1};
  uneven.recvs = {1 << 20, 1 << 20};
  EXPECT_FALSE(is_for_one_pass(uneven));
  Problem barrier;
  barrier.what = Collective::kBarrier;
  barrier.count = 1 << 20;
  EXPECT_FALSE(is_for_one_pass(barrier));
}

TEST(OnePass, WhatItReachesIntoIsWhatItSays) {
  const int world = 3;
  for (const Collective what : kCollectives) {
    Case c = heap_case(what, world, 1000);
    c.problem.root = 1;
    std::vector<Reached> seen(world);
    for (const Plan& plan : plans_of(c)) {
      for (const Step& step : plan.channels[0].steps) {
        for (const Ref& ref : step.srcs) {
          if (ref.space == Space::kPeerInput) seen[ref.index].inputs = true;
        }
        for (const Ref& ref : step.dsts) {
          if (ref.space == Space::kPeerOutput) seen[ref.index].outputs = true;
        }
      }
    }
    for (int rank = 0; rank < world; ++rank) {
      const Reached said = reached_by_others(c.problem, rank);
      EXPECT_EQ(said.inputs, seen[rank].inputs) << name_of(what) << " rank " << rank;
      EXPECT_EQ(said.outputs, seen[rank].outputs) << name_of(what) << " rank " << rank;
    }
  }
}

TEST(OnePass, OtherCollectivesAreRefused) {
  Problem problem = heap_case(Collective::kBarrier, 2, 0).problem;
  EXPECT_THROW(one_pass(problem), Error);
}

}  // namespace
}  // namespace ringdp::plan::testing
