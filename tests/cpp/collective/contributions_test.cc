#include "collective/contributions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "collective/executor_world.h"
#include "kernels/checksum.h"

namespace ringdp::collective {
namespace {

constexpr int64_t kCount = 5003;

// Of what each rank gives, and of what all ranks together have summed of it.
struct Compared {
  Compared(World& world, int ranks) : given(ranks), summed(ranks), elements(ranks) {
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
    }
  }
  bool is_right(int rank) const {
    const int64_t times = elements[rank] / kCount;
    return times > 0 && elements[rank] == times * kCount && summed[rank] == times * given[rank];
  }
  std::vector<uint64_t> given, summed;
  std::vector<int64_t> elements;
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

// What the steps of all ranks' plans read of each rank's contribution.
std::vector<int64_t> elements_read(AlgorithmChoice algorithm, Order order, plan::Problem problem) {
  std::vector<int> members(problem.world);
  std::iota(members.begin(), members.end(), 0);
  const std::vector<std::byte> memory(1 << 20);
  std::vector<int64_t> elements(problem.world);
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
        if (step.verb != plan::Verb::kFold && !encodes) continue;
        for (const plan::Ref& ref : step.srcs) reader.read(ref, memory.data(), ref.count);
      }
    }
    for (int r = 0; r < problem.world; ++r) elements[r] += read.elements[r];
  }
  return elements;
}

TEST(Contributions, EveryPlanOfASumReadsEachAsOftenAsAllOthers) {
  using enum AlgorithmChoice;
  for (const auto what : {plan::Collective::kAllReduce, plan::Collective::kReduceScatter}) {
    for (const auto algorithm : {kArena, kDirect, kRing, kTree, kServer, kHierarchy}) {
      for (const auto order : {Order::kRank, Order::kRotated}) {
        for (const auto dtype : {DType::kF32, DType::kBF16}) {
          for (const auto wire : {WireType::kFp32, WireType::kBf16}) {
            for (const std::vector<int>& hosts : {std::vector<int>{}, {0, 2}, {0, 1, 4}, {0, 1, 2, 3, 4}}) {
              if (algorithm == kHierarchy && hosts.empty()) continue;
              if (wire != WireType::kFp32 && algorithm != kDirect) continue;
              plan::Problem problem;
              problem.what = what;
              problem.dtype = dtype;
              problem.wire = wire;
              problem.world = 5;
              problem.hosts = hosts;
              problem.count = 3001;
              problem.segment_bytes = 256;
              problem.one_shot_bytes = 0;
              problem.slot_bytes = 4096;
              const int64_t whole =
                  what == plan::Collective::kAllReduce ? problem.count : problem.world * problem.count;
              EXPECT_EQ(elements_read(algorithm, order, problem), std::vector<int64_t>(problem.world, whole))
                  << plan::name_of(algorithm) << " " << plan::name_of(what) << (order == Order::kRank ? "" : " rotated")
                  << " dtype " << static_cast<int>(dtype) << ", " << hosts.size() << " hosts";
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
