// Reductions to which ranks contribute the roots of their leaves: several tensors, one or none.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "harness.h"
#include "root_cases.h"

namespace ringdp::plan::testing {
namespace {

class RootsEverything : public ::testing::TestWithParam<AlgorithmChoice> {};

TEST_P(RootsEverything, AddUpAlongTheTreeByItsDefinition) {
  uint64_t seed = 0;
  for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (int world = 1; world <= 9; ++world) {
      for (const int micro_batches : {1, 2, 3, 7, 8, 24}) {
        for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{world + 1}, int64_t{500}}) {
          for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
            if (kSanitized && !long_tests() && (count > 100 || world % 3 != 0)) continue;
            ++seed;
            if (GetParam() == AlgorithmChoice::kServer && seed % 4 != 0) continue;  // direct's, with one owner
            std::mt19937_64 random(seed);
            Case c = roots_case(GetParam(), what, random_roots(world, micro_batches, random), count);
            c.seed = seed;
            c.link_bytes = std::vector<size_t>{5, 64, 1 << 16}[seed % 3];
            c.problem.dtype = dtype;
            c.problem.op = seed % 2 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
            c.problem.segment_bytes = seed / 2 % 2 == 0 ? 64 : 1000;
            c.problem.slot_bytes = int64_t{64} * world * c.problem.most_contributed();  // many stages
            c.problem.in_heaps = GetParam() == AlgorithmChoice::kArena && seed % 2 == 0;
            check(c);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, RootsEverything,
                         ::testing::Values(AlgorithmChoice::kArena, AlgorithmChoice::kDirect, AlgorithmChoice::kServer),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// One root per rank, in the order of ranks, is order=tree itself: the same plans.
TEST(Roots, OneOfEachRankInOrderIsTheTreeOfRanks) {
  for (const AlgorithmChoice algorithm : {AlgorithmChoice::kArena, AlgorithmChoice::kDirect}) {
    for (const int world : {4, 8}) {
      const Case c = roots_case(algorithm, Collective::kAllReduce,
                                roots_of_ranks(3 * world, allot(even_shares(3 * world, world))), 1000);
      Case plain = c;
      plain.problem.roots = nullptr;
      plain.problem.one_shot_bytes = 0;
      for (int r = 0; r < world; ++r) {
        EXPECT_EQ(collective::to_json(plans_of(c)[r]), collective::to_json(plans_of(plain)[r])) << text_of(c);
      }
    }
  }
}

TEST(Roots, HaveDirectsPlanWhereRanksMeetInPairsOrEachReducesAll) {
  for (const AlgorithmChoice algorithm : {AlgorithmChoice::kExchange, AlgorithmChoice::kHalving}) {
    Case c = roots_case(algorithm, Collective::kAllReduce, roots_of_ranks(3, {{0, 1}, {2}}), 1000);
    const std::string plan = collective::to_json(plans_of(c)[1]);
    c.algorithm = AlgorithmChoice::kDirect;
    EXPECT_EQ(plan, collective::to_json(plans_of(c)[1]));
  }
}

// An owner gets its slice of every root that is not its own, and sends the result to all others.
TEST(Roots, TravelOnceToTheirOwners) {
  std::mt19937_64 random(5);
  for (int world = 2; world <= 8; ++world) {
    for (const bool scatters : {false, true}) {
      const int64_t slice = 50 * 4, count = scatters ? 50 : 50 * world;
      const Case c =
          roots_case(AlgorithmChoice::kDirect, scatters ? Collective::kReduceScatter : Collective::kAllReduce,
                     random_roots(world, 11, random), count);
      for (const Plan& plan : plans_of(c)) {
        const int64_t own = c.problem.contributed(plan.rank);
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, (world - 1) * slice * (own + (scatters ? 0 : 1))) << text_of(c);
        const int64_t all =
            std::accumulate(c.problem.roots->by_rank.begin(), c.problem.roots->by_rank.end(), int64_t{0},
                            [](int64_t sum, const auto& of) { return sum + int64_t(of.size()); });
        EXPECT_EQ(sums.bytes_received, slice * (all - own + (scatters ? 0 : world - 1))) << text_of(c);
      }
    }
  }
}

// In heaps every root is read once where it lies, and every output written once.
TEST(Roots, AreReadOnceInHeaps) {
  Case c = roots_case(AlgorithmChoice::kArena, Collective::kAllReduce,
                      roots_of_ranks(8, {{0, 1, 2}, {3, 4, 5}, {6, 7}}), 1 << 14);
  c.problem.in_heaps = true;
  const int64_t bytes = c.problem.count * 4;
  int64_t read = 0, written = 0;
  for (const Plan& plan : plans_of(c)) {
    read += collective::totals(plan).memory_read;
    written += collective::totals(plan).memory_written;
    EXPECT_EQ(plan.algorithm, "one pass");
    EXPECT_EQ(::ringdp::plan::text_of(plan.programs.at(0)), "0 1 2 + + 3 4 + +") << "of 0-1, 2 | 3, 4-5 | 6-7";
  }
  EXPECT_EQ(read, 5 * bytes);
  EXPECT_EQ(written, 3 * bytes);
}

// As all ranks have links, too.
TEST(Roots, ForWhichASlotIsTooSmallHaveDirectsPlan) {
  const RootsPtr roots = roots_of_ranks(16, {{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13}, {15}});
  for (const AlgorithmChoice algorithm : {AlgorithmChoice::kArena, AlgorithmChoice::kHierarchy}) {
    Case c = roots_case(algorithm, Collective::kAllReduce, roots, 100);
    c.problem.hosts = {0, 2};
    const int pieces = 8 * (algorithm == AlgorithmChoice::kArena ? 3 : 1);
    c.problem.slot_bytes = 64 * pieces;
    EXPECT_NE(plans_of(c)[0].algorithm, "direct");
    --c.problem.slot_bytes;
    EXPECT_EQ(plans_of(c)[0].algorithm, "direct");
    check(c);
    c.problem.slot_bytes = 1 << 20;
    c.problem.count = 100 << 20;  // more copies than are worth a plan
    EXPECT_EQ(plans_of(c)[0].algorithm, "direct");
  }
}

std::string refusal(const Case& c) {
  try {
    make_plan(c.algorithm, c.order, c.problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Roots, WhatTheyAreNotForIsNamed) {
  const Case good = roots_case(AlgorithmChoice::kDirect, Collective::kAllReduce, roots_of_ranks(3, {{0, 2}, {1}}), 10);
  EXPECT_EQ(refusal(good), "");
  const auto expect = [&](const char* words, const std::function<void(Case&)>& change) {
    Case c = good;
    change(c);
    EXPECT_NE(refusal(c).find(words), std::string::npos) << words << " is not in: " << refusal(c);
  };
  expect("not for reduce", [](Case& c) { c.problem.what = Collective::kReduce; });
  expect("MAX", [](Case& c) { c.problem.op = ReduceOp::kMax; });
  expect("int32", [](Case& c) { c.problem.dtype = DType::kI32; });
  expect("order=tree, not rank", [](Case& c) { c.order = Order::kRank; });
  expect("algorithm=ring has no plan", [](Case& c) { c.algorithm = AlgorithmChoice::kRing; });
  expect("counts must be empty", [](Case& c) {
    c.problem.what = Collective::kReduceScatter;
    c.problem.counts = {3, 7};
  });
  expect("not reduced on devices", [](Case& c) { c.problem.on_device = true; });
  expect("roots of 2 ranks for world=3", [](Case& c) { c.problem.world = 3; });
  expect("no part has leaf 1", [](Case& c) { c.problem.roots = roots_of_ranks(3, {{0, 2}, {}}); });
  expect("are there twice", [](Case& c) { c.problem.roots = roots_of_ranks(3, {{0, 1}, {1, 2}}); });
}

}  // namespace
}  // namespace ringdp::plan::testing
