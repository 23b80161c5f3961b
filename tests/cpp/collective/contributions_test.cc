#include "collective/contributions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "collective/executor_world.h"
#include "kernels/checksum.h"
#include "long_tests.h"

namespace ringdp::collective {
namespace {

constexpr int64_t kCount = 5003;

// Of what each rank gives, of what all ranks together have summed of it, and of the result that they have computed.
struct Compared {
  Compared(World& world, int ranks) : world(world), given(ranks), summed(ranks), elements(ranks) {
    world.counts_contributions = true;
    for (int r = 0; r < ranks; ++r) {
      for (int64_t i = 0; i < kCount; ++i) world.in(r)[i] = static_cast<float>(r * kCount + i) / 7;
      given[r] = kernels::unordered_checksum(world.in(r).data(), kCount, 4);
    }
    world.start(1, std::vector<int>(ranks, 1));
    world.run();
    for (int reader = 0; reader < ranks; ++reader) {
      for (int r = 0; r < ranks; ++r) {
        summed[r] += world.contributions(reader).sums[r];
        elements[r] += world.contributions(reader).elements[r];
      }
      computed += world.contributions(reader).result;
      computed_elements += world.contributions(reader).result_elements;
    }
  }
  bool is_right(int rank) const {
    const int64_t times = elements[rank] / kCount;
    return times > 0 && elements[rank] == times * kCount && summed[rank] == times * given[rank];
  }
  bool is_held_by(int rank) const {
    const int64_t times = computed_elements / kCount;
    const uint64_t held = kernels::unordered_checksum(world.out(rank).data(), kCount, 4);
    return times > 0 && computed_elements == times * kCount && computed == times * held;
  }
  const World& world;
  std::vector<uint64_t> given, summed;
  std::vector<int64_t> elements;
  uint64_t computed = 0;
  int64_t computed_elements = 0;
};

TEST(Contributions, EveryPlanSumsWhatEveryRankGives) {
  for (const Case& c : kCases) {
    for (int ranks = 2; ranks <= 7; ++ranks) {
      World world(ranks, c, kCount);
      const Compared compared(world, ranks);
      for (int r = 0; r < ranks; ++r) EXPECT_TRUE(compared.is_right(r)) << world.plan(r).algorithm << ", rank " << r;
    }
  }
}

TEST(Contributions, EveryRankHoldsTheResultThatWasComputed) {
  for (const Case& c : kCases) {
    for (int ranks = 2; ranks <= 8; ranks += once_will_do() ? 3 : 1) {
      for (const int64_t slot_bytes : {4 << 10, 64 << 10}) {
        World world(ranks, c, kCount, 0, slot_bytes);
        const Compared compared(world, ranks);
        for (int r = 0; r < ranks; ++r) {
          EXPECT_TRUE(compared.is_held_by(r)) << world.plan(r).algorithm << ", rank " << r << " of " << ranks;
        }
      }
    }
  }
}

// One bit, as a link or a slot brings the result to rank 1; a rank to which rank 1 passes it on holds the same.
TEST(Contributions, AResultThatChangesOnItsWayIsNotTheOneComputed) {
  for (const Case& c : kCases) {
    World right(4, c, kCount), world(4, c, kCount);
    const Compared expected(right, 4);
    bool flipped = false;
    world.after_step = [&](int rank, const plan::Step& step, const std::vector<void*>& dsts) {
      using enum plan::Verb;
      const bool brings = step.verb == kRecv || step.verb == kCopy || step.verb == kDecode;
      if (flipped || rank != 1 || !brings || step.dsts[0].space != plan::Space::kOutput) return;
      flipped = true;
      static_cast<unsigned char*>(dsts[0])[1] ^= 4;
    };
    const Compared compared(world, 4);
    EXPECT_EQ(flipped, c.algorithm != AlgorithmChoice::kExchange) << "there a rank computes all that it holds";
    EXPECT_EQ(world.out(1) != right.out(1), flipped) << world.plan(0).algorithm;
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(compared.is_held_by(r), world.out(r) == right.out(r)) << world.plan(0).algorithm << ", rank " << r;
    }
  }
}

// What the steps of all ranks' plans read of each rank's contribution and, last, compute of the result.
std::vector<int64_t> elements_read(AlgorithmChoice algorithm, Order order, plan::Problem problem) {
  std::vector<int> members(problem.world);
  std::iota(members.begin(), members.end(), 0);
  const std::vector<std::byte> memory(1 << 20);
  std::vector<int64_t> elements(problem.world + 1);
  for (problem.rank = 0; problem.rank < problem.world; ++problem.rank) {
    const plan::Plan plan = plan::make_plan(algorithm, order, problem);
    const auto host = std::upper_bound(problem.hosts.begin(), problem.hosts.end(), problem.rank);
    const int first = algorithm == AlgorithmChoice::kHierarchy ? *(host - 1) : 0;  // of those in an arena with it
    Contributions read;
    const std::vector<int> of_host(members.begin() + first, members.end());
    ContributionReader reader(plan, of_host, read);
    for (const plan::Channel& channel : plan.channels) {
      for (const plan::Step& step : channel.steps) {
        const bool encodes = step.verb == plan::Verb::kEncode && step.srcs[0].space == plan::Space::kInput;
        const bool folds = step.verb == plan::Verb::kFold;
        for (const plan::Ref& ref : step.srcs) {
          if (folds || encodes) reader.read(ref, memory.data(), ref.count);
        }
        if (folds || step.verb == plan::Verb::kDecode) reader.wrote(step, memory.data(), step.dsts[0].count);
      }
    }
    elements.back() += read.result_elements;
    for (int r = 0; r < problem.world; ++r) elements[r] += read.elements[r];
  }
  return elements;
}

// Once; where all ranks compute the whole result, once on each.
TEST(Contributions, EveryPlanOfASumReadsEachAndComputesTheResult) {
  using enum AlgorithmChoice;
  for (const auto what : {plan::Collective::kAllReduce, plan::Collective::kReduceScatter}) {
    for (const auto algorithm : {kArena, kDirect, kExchange, kRing, kTree, kServer, kHierarchy, kHalving}) {
      for (const auto order : {Order::kRank, Order::kRotated, Order::kTree}) {
        if (order == Order::kTree && !plan::sums_along_tree(algorithm)) continue;
        for (const auto dtype : {DType::kF32, DType::kBF16}) {
          for (const auto wire : {WireType::kFp32, WireType::kBf16}) {
            for (const std::vector<int>& hosts : {std::vector<int>{}, {0, 2}, {0, 1, 4}, {0, 1, 2, 3, 4}}) {
              if (algorithm == kHierarchy && hosts.empty()) continue;
              if (algorithm == kHalving && (order != Order::kTree || !hosts.empty())) continue;
              if (wire != WireType::kFp32 && (algorithm != kDirect || order == Order::kTree)) continue;
              plan::Problem problem;
              problem.what = what;
              problem.dtype = dtype;
              problem.wire = wire;
              problem.world = algorithm == kHalving ? 8 : 5;
              problem.hosts = hosts;
              problem.count = 3001;
              problem.segment_bytes = 256;
              problem.one_shot_bytes = 0;
              problem.slot_bytes = 4096;
              const bool all_reduces = what == plan::Collective::kAllReduce;
              const int64_t times = algorithm == kExchange && all_reduces ? problem.world : 1;
              const int64_t whole = times * (all_reduces ? problem.count : problem.world * problem.count);
              EXPECT_EQ(elements_read(algorithm, order, problem), std::vector<int64_t>(problem.world + 1, whole))
                  << plan::name_of(algorithm) << " " << plan::name_of(what) << " " << plan::name_of(order) << " dtype "
                  << static_cast<int>(dtype) << ", " << hosts.size() << " hosts";
            }
          }
        }
      }
    }
  }
}

TEST(Contributions, ASumInOneShotIsReadOnEveryRank) {
  World world(3, kCases[0], kCount, 0, 64 << 10);
  const Compared compared(world, 3);
  EXPECT_EQ(compared.elements, std::vector<int64_t>(3, 3 * kCount));
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(compared.is_right(r));
}

// One bit, in what rank 1 has put where others read it, or has sent.
TEST(Contributions, AFlippedBitOnTheWayIsSeenInThatRanksOnly) {
  for (const Case& c : kCases) {
    if (c.wire != WireType::kFp32) continue;  // what is encoded has been read before
    World world(4, c, kCount);
    bool flipped = false;
    world.after_step = [&](int rank, const plan::Step& step, const std::vector<void*>& dsts) {
      const bool shown = step.verb == plan::Verb::kCopy && rank == 1 && step.dsts[0].space == plan::Space::kSlot;
      const bool sent = step.verb == plan::Verb::kRecv && step.peer == 1 && step.dsts[0].form == plan::Form::kRaw &&
                        step.dsts[0].space == plan::Space::kScratch;
      if (flipped || !(shown || sent)) return;
      flipped = true;
      static_cast<unsigned char*>(dsts[0])[1] ^= 4;
    };
    const Compared compared(world, 4);
    if (!flipped) continue;  // rank 1 has passed partial sums on only
    for (int r = 0; r < 4; ++r) EXPECT_EQ(compared.is_right(r), r != 1) << world.plan(r).algorithm;
  }
}

// Whatever happens to the tensor between the call and the sum.
TEST(Contributions, AFlippedBitInTheTensorIsSeenInEveryPlan) {
  for (const Case& c : kCases) {
    World world(4, c, kCount);
    bool flipped = false;
    world.after_step = [&](int, const plan::Step&, const std::vector<void*>&) {
      if (!std::exchange(flipped, true)) world.in(2)[kCount - 1] *= 2;
    };
    const Compared compared(world, 4);
    ASSERT_TRUE(flipped);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(compared.is_right(r), r != 2) << world.plan(r).algorithm << ", rank " << r;
  }
}

}  // namespace
}  // namespace ringdp::collective
