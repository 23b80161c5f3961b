#include "plan/host_trees.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness.h"
#include "root_cases.h"

namespace ringdp::plan::testing {
namespace {

Case on_hosts(std::vector<int> hosts, RootsPtr roots, int64_t count) {
  Case c = roots_case(AlgorithmChoice::kHierarchy, Collective::kAllReduce, std::move(roots), count);
  c.problem.hosts = std::move(hosts);
  c.problem.segment_bytes = 64;
  c.problem.slot_bytes = int64_t{64 * 5} * c.problem.world * c.problem.most_contributed();
  return c;
}

// Enough stages for slots, and enough segments for scratch, to be used again.
TEST(HostTrees, EqualTheDefinitionForAnyHostsAndRoots) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    std::mt19937_64 random(seed);
    const int world = 2 + static_cast<int>(random() % 7);
    const int micro_batches = std::vector<int>{1, 2, 3, 7, 8, 24}[random() % 6];
    const int64_t counts[] = {0, 1, world, 500, 2000};
    Case c = on_hosts(random_hosts(world, 3, random), random_roots(world, micro_batches, random), counts[random() % 5]);
    c.problem.dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF64}[seed % 3];
    c.problem.op = seed % 2 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
    c.link_bytes = std::vector<size_t>{5, 64, 1 << 16}[random() % 3];
    c.seed = seed;
    check(c);
    if (HasFatalFailure()) return;
  }
}

// Of one leaf per rank, also in place; every way to put up to 6 ranks on hosts.
TEST(HostTrees, EveryPartitionIntoHostsGivesTheSum) {
  check_all_hosts(6, [](const std::vector<int>& hosts, int world) {
    Case c = arena_case(Collective::kAllReduce, world, 1500);
    c.algorithm = AlgorithmChoice::kHierarchy;
    c.order = Order::kTree;
    c.problem.hosts = hosts;
    c.problem.segment_bytes = 64;
    return c;
  });
}

// Nothing but the plans keeps a fast rank's next collective out of the slots of this one.
TEST(HostTrees, CollectivesFollowEachOtherWithoutRaces) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const int world = 3 + static_cast<int>(random() % 4);
    const std::vector<int> hosts = random_hosts(world, 3, random);
    std::vector<Case> cases;
    for (int i = 0; i < 6; ++i) {
      Case c = on_hosts(hosts, random_roots(world, 8, random), static_cast<int64_t>(random() % 3 * (random() % 900)));
      if (random() % 3 == 0) c.problem.roots = nullptr;
      if (random() % 4 == 0) c.problem.what = Collective::kReduceScatter;
      c.problem.slot_bytes = int64_t{64} * 64 * world;
      c.seed = seed * 100 + i;
      cases.push_back(c);
    }
    check_sequence(cases);
    if (HasFatalFailure()) return;
  }
}

// Every root of the host, and the result, go to all other hosts by slices.
TEST(HostTrees, AHostSendsOneCopyPerRootOfItsOwn) {
  struct Row {
    std::vector<int> hosts;
    std::vector<std::vector<int>> leaves;
    std::vector<int> roots;  // by host
  };
  const Row rows[] = {{{0, 2}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, {1, 1}},
                      {{0, 2}, {{0, 1, 2}, {3, 4, 5}, {6}, {7}}, {2, 1}},
                      {{0, 2, 4}, {{0, 1}, {2}, {3, 4}, {5}, {6}, {7}}, {2, 2, 1}},
                      {{0, 2}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, {2, 2}}};
  for (const Row& row : rows) {
    const int64_t hosts = static_cast<int64_t>(row.hosts.size());
    Case c = on_hosts(row.hosts, roots_of_ranks(8, row.leaves), 480 * hosts);
    const int64_t bytes = c.problem.count * 4;
    std::vector<int64_t> sent(hosts);
    std::vector<Plan> plans = plans_of(c);
    for (const Plan& plan : plans) {
      const auto host = std::upper_bound(row.hosts.begin(), row.hosts.end(), plan.rank) - row.hosts.begin() - 1;
      sent[host] += collective::totals(plan).bytes_sent;
    }
    const Roots found = roots_of_hosts(c.problem);
    for (int64_t h = 0; h < hosts; ++h) {
      EXPECT_EQ(found.by_rank[h].size(), static_cast<size_t>(row.roots[h])) << h;
      EXPECT_EQ(sent[h], (row.roots[h] + 1) * (hosts - 1) * bytes / hosts) << text_of(c) << " host " << h;
    }
  }
}

TEST(HostTrees, ScratchIsBoundedWhateverTheCount) {
  std::vector<int64_t> scratch;
  for (const int64_t count : {20'000, 100'000}) {
    Case c = on_hosts({0, 2}, roots_of_ranks(8, {{0, 1, 2}, {3}, {4, 5}, {6, 7}}), count);
    scratch.push_back(plans_of(c)[0].scratch_bytes);
  }
  EXPECT_EQ(scratch[0], scratch[1]);
}

}  // namespace
}  // namespace ringdp::plan::testing
