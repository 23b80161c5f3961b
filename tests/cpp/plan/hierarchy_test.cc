#include "plan/hierarchy.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

TEST(Hierarchy, AllReduceEqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kHierarchy, Order::kRank, Collective::kAllReduce);
}

Case hierarchy_case(std::vector<int> hosts, int world, int64_t count) {
  Case c = arena_case(Collective::kAllReduce, world, count);
  c.algorithm = AlgorithmChoice::kHierarchy;
  c.problem.hosts = std::move(hosts);
  c.problem.segment_bytes = 64;
  return c;
}

// Every way to put up to 7 ranks on hosts, with enough stages for slots to be used again.
TEST(Hierarchy, EveryPartitionIntoHostsGivesTheSum) {
  check_all_hosts(7, [](const std::vector<int>& hosts, int world) { return hierarchy_case(hosts, world, 1100); });
}

// Nothing but the plans keeps a fast rank's next collective out of the slots of this one.
TEST(Hierarchy, CollectivesFollowEachOtherWithoutRaces) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const int world = 2 + static_cast<int>(random() % 6);
    const std::vector<int> hosts = random_hosts(world, 3, random);
    std::vector<Case> cases;
    for (int i = 0; i < 8; ++i) {
      Case c = hierarchy_case(hosts, world, random() % 3 * (random() % 900));
      if (random() % 3 == 0) c.problem.what = static_cast<Collective>(random() % kCollectiveCount);
      c.problem.root = static_cast<int>(random() % world);
      c.seed = seed * 100 + i;
      cases.push_back(c);
    }
    check_sequence(cases);
    if (HasFatalFailure()) return;
  }
}

// Owners of the last host send results, those of the others partial sums, and all but the last two pass results on.
TEST(Hierarchy, HostsSendTheTensorOnceOrTwice) {
  const std::pair<std::vector<int>, int> places[] = {{{0, 2}, 4}, {{0, 3}, 8}, {{0, 2, 4}, 6}, {{0, 1, 4, 6}, 9}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const auto& [hosts, world] : places) {
      Case c = hierarchy_case(hosts, world, 1000);
      c.problem.dtype = dtype;
      const int64_t raw = 1000 * size_of(dtype), wide = 1000 * size_of(wide_of(dtype));
      const int last = static_cast<int>(hosts.size()) - 1;
      std::vector<int64_t> sent(hosts.size());
      for (const Plan& plan : plans_of(c)) {
        const auto host = std::upper_bound(hosts.begin(), hosts.end(), plan.rank) - hosts.begin() - 1;
        sent[host] += collective::totals(plan).bytes_sent;
      }
      for (int h = 0; h <= last; ++h) {
        const int64_t wanted = (h < last ? wide : raw) + (h + 1 < last ? raw : 0);
        EXPECT_EQ(sent[h], wanted) << text_of(c) << " host " << h;
        EXPECT_LE(dtype == DType::kBF16 ? 0 : sent[h], (last == 1 ? 1 : 2) * raw) << text_of(c) << " host " << h;
      }
    }
  }
}

// A chain of H hosts and back, one round per segment behind.
TEST(Hierarchy, TakesAsManyRoundsAsThePipelineIsLong) {
  for (const int hosts : {2, 3, 4}) {
    Case c = hierarchy_case({}, 2 * hosts, 0);
    for (int h = 0; h < hosts; ++h) c.problem.hosts.push_back(2 * h);
    const int64_t stages = 3, segments = stages * piece_bytes(2) / 64;
    c.problem.count = stages * 2 * piece_bytes(2) / 4;
    const std::vector<Plan> plans = plans_of(c);
    EXPECT_EQ(rounds_of(plans), 2 * (hosts - 1) + segments - 1) << hosts;
    for (const Plan& plan : plans) EXPECT_EQ(barriers_of(plan), stages + 2);
  }
}

TEST(Hierarchy, RanksBeyondTheSmallestHostOwnNothing) {
  const std::vector<Plan> plans = plans_of(hierarchy_case({0, 2}, 6, 1000));
  for (const int rank : {4, 5}) {
    EXPECT_EQ(plans[rank].channels.size(), 1u);
    for (const Step& step : plans[rank].channels[0].steps) EXPECT_NE(step.verb, Verb::kFold);
  }
}

TEST(Hierarchy, ScratchIsBoundedWhateverTheCount) {
  for (const int64_t count : {10'000, 100'000}) {
    for (const Plan& plan : plans_of(hierarchy_case({0, 2, 4}, 6, count))) {
      EXPECT_LE(plan.scratch_bytes, 2 * 4 * 64) << plan.rank;  // in and out x window x segment
    }
  }
}

TEST(Hierarchy, WithoutTwoLevelsThePlanIsOfTheLevelThatIsThere) {
  EXPECT_EQ(plans_of(hierarchy_case({0}, 3, 10))[1].algorithm, "arena");
  EXPECT_EQ(plans_of(hierarchy_case({0, 1, 2}, 3, 10))[1].algorithm, "ring");
  Case c = hierarchy_case({0, 2}, 3, 10);
  c.problem.what = Collective::kAllToAll;
  EXPECT_EQ(plans_of(c)[1].algorithm, "direct");
}

TEST(Hierarchy, NeedsContiguousHosts) {
  try {
    plans_of(hierarchy_case({}, 4, 10));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("algorithm=hierarchy"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
