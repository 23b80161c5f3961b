// Hierarchy for devices: the bits of the serial fold, both ends of every message, no races on any host, no flag too
// many.
#include "plan/hierarchy.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cpp/plan/link_rounds_case.h"
#include "device/plan/check.h"
#include "device/plan/link_rounds.h"
#include "device/plan/lower.h"
#include "device/plan/race.h"
#include "plan/builder.h"

namespace ringdp::plan::testing {
namespace {

// What the rounds of a hierarchy do in the memory that one host's ranks share, as device plans, for the search for
// races.
//
// Messages and folds run on each rank's stream: their accesses are told by copies from and to the rank's own slot,
// where none is its own; what is sent, which no other rank may touch, is copied onto itself.
class HostPlan {
 public:
  HostPlan(const Plan& plan, int first, int members, int64_t count)
      : plan_(plan), problem_(problem(plan, first, members, count)) {}

  DevicePlan build() const {
    return lower(problem_, [this](const Problem& problem) { return write(problem); });
  }

 private:
  static Problem problem(const Plan& plan, int first, int members, int64_t count) {
    Problem found;
    found.dtype = plan.dtype;
    found.rank = plan.rank - first;
    found.world = members;
    found.count = count;
    found.on_device = found.in_heaps = true;
    return found;
  }

  Plan write(const Problem& problem) const {
    Builder builder("hierarchy", problem);
    const int channel = builder.add_channel("device");
    const auto move = [&](const Step& step) {
      const auto stage = [&](const Ref& like) { return builder.slot(problem.rank, 0, 0, like.count); };
      for (const Ref& src : step.srcs)
        builder.copy(channel, src.space == Space::kScratch ? stage(src) : src, stage(src));
      for (const Ref& dst : step.dsts)
        builder.copy(channel, stage(dst), dst.space == Space::kScratch ? stage(dst) : dst);
    };
    for (const LinkRound& round : rounds_of(plan_)) {
      for (const Step& message : round.messages) {
        if (message.verb == Verb::kRecv) move(message);
        const bool sends_result = message.verb == Verb::kSend && message.srcs[0].space == Space::kOutput;
        if (sends_result) builder.copy(channel, message.srcs[0], message.srcs[0]);
      }
      for (const Step& step : round.steps) {
        if (step.verb == Verb::kArrive) builder.arrive(channel);
        if (step.verb == Verb::kWait) builder.wait(channel);
        if (step.verb == Verb::kFold || step.verb == Verb::kCopy) move(step);
      }
    }
    return builder.finish();
  }

  const Plan& plan_;
  const Problem problem_;
};

// Of the host's ranks, `members` from rank `first` on.
std::vector<DevicePlan> host_plans(const std::vector<Plan>& plans, int first, int members, int64_t count) {
  std::vector<DevicePlan> found;
  for (int m = 0; m < members; ++m) found.push_back(HostPlan(plans[first + m], first, members, count).build());
  return found;
}

struct Ranks {
  Case c;
  std::vector<Plan> plans;
};

Ranks ranks_of(const std::vector<int>& hosts, int world, int64_t packs, DType dtype = DType::kF32) {
  Ranks ranks;
  ranks.c.algorithm = AlgorithmChoice::kHierarchy;
  ranks.c.in_place = true;
  Problem& problem = ranks.c.problem;
  problem.dtype = dtype;
  problem.world = world;
  problem.hosts = hosts;
  problem.count = packs * pack_elements(dtype);
  problem.segment_bytes = 2 * kDevicePackBytes;
  problem.on_device = problem.in_heaps = true;
  return ranks;
}

void plan(Ranks& ranks) {
  for (int r = 0; r < ranks.c.problem.world; ++r) {
    Problem own = ranks.c.problem;
    own.rank = r;
    ranks.plans.push_back(hierarchy(own));
  }
}

int members_of(const Problem& problem, size_t host) {
  return (host + 1 < problem.hosts.size() ? problem.hosts[host + 1] : problem.world) - problem.hosts[host];
}

// First ranks of two and three hosts of one to three ranks.
std::vector<std::pair<std::vector<int>, int>> places() {
  std::vector<std::pair<std::vector<int>, int>> found;
  for (int a = 1; a <= 3; ++a) {
    for (int b = 1; b <= 3; ++b) {
      if (a + b > 2) found.push_back({{0, a}, a + b});
      for (int c = 1; c <= 3; ++c) {
        if (a + b + c > 3) found.push_back({{0, a, a + b}, a + b + c});
      }
    }
  }
  return found;
}

TEST(DeviceHierarchy, SumsHaveTheBitsOfTheSerialFold) {
  uint64_t seed = 0;
  for (const auto& [hosts, world] : places()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
      for (const int64_t packs : {0, 1, 5, 23}) {
        Ranks ranks = ranks_of(hosts, world, packs, dtype);
        ranks.c.seed = ++seed;
        ranks.c.link_bytes = 40 + seed % 97;
        ranks.c.problem.op = is_floating(dtype) && seed % 2 ? ReduceOp::kAvg : ReduceOp::kSum;
        plan(ranks);
        check_ends_meet(ranks.c, ranks.plans);
        if (!HasFatalFailure()) check_rounds(ranks.c, ranks.plans);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceHierarchy, NothingRacesOnAnyHost) {
  for (const auto& [hosts, world] : places()) {
    for (const int64_t packs : {0, 1, 23}) {
      Ranks ranks = ranks_of(hosts, world, packs, DType::kBF16);
      plan(ranks);
      for (size_t h = 0; h < hosts.size(); ++h) {
        const int members = members_of(ranks.c.problem, h);
        const auto plans = host_plans(ranks.plans, hosts[h], members, ranks.c.problem.count);
        if (members == 1) continue;
        EXPECT_NO_THROW(check_together(plans));
        for (const bool in_place : {true, false}) {
          EXPECT_EQ(find_race({plans, plans, plans}, {1, 1, 1}, in_place), "") << text_of(ranks.c) << " host " << h;
        }
      }
    }
  }
}

// Both ends of a flag, left out.
std::vector<DevicePlan> without_flags(std::vector<DevicePlan> plans, DeviceSlot slot, int writer, int reader) {
  const auto drop = [&](DevicePlan& plan, DeviceVerb verb, int peer) {
    std::erase_if(plan.steps, [&](const DeviceStep& s) { return s.verb == verb && s.slot == slot && s.peer == peer; });
  };
  drop(plans[writer], DeviceVerb::kPost, reader);
  drop(plans[reader], DeviceVerb::kAwait, writer);
  return plans;
}

// A rank that owns nothing neither reads nor writes, but others do where it lies.
TEST(DeviceHierarchy, EveryMeetingOfEveryPairIsNeeded) {
  Ranks ranks = ranks_of({0, 3}, 6, 23);
  plan(ranks);
  for (const int first : {0, 3}) {
    const auto plans = host_plans(ranks.plans, first, 3, ranks.c.problem.count);
    for (const DeviceSlot slot : {kEntrySlot, kExitSlot}) {
      for (int writer = 0; writer < 3; ++writer) {
        for (int reader = 0; reader < 3; ++reader) {
          if (reader == writer) continue;
          const auto broken = without_flags(plans, slot, writer, reader);
          EXPECT_NE(find_race({broken, broken}, {1, 1}, true), "")
              << name_of(slot) << " of " << writer << " for " << reader << " on the host of rank " << first;
        }
      }
    }
  }
}

TEST(DeviceHierarchy, TakesARoundForEverySegmentAndTwoForEveryHostAfterTheFirst) {
  for (const int hosts : {2, 3, 4}) {
    Ranks ranks = ranks_of({}, 2 * hosts, 2 * 2 * 5);  // 5 segments for each owner
    for (int h = 0; h < hosts; ++h) ranks.c.problem.hosts.push_back(2 * h);
    plan(ranks);
    size_t rounds = 0;
    for (const Plan& one : ranks.plans) {
      const std::vector<LinkRound> own = rounds_of(one);
      EXPECT_TRUE(own[0].messages.empty());
      rounds = std::max(rounds, own.size());
    }
    EXPECT_EQ(rounds, 5u + 2 * static_cast<size_t>(hosts - 1));
  }
}

// As the CPU's: partial sums once, results once, passed on by all but the last two hosts.
TEST(DeviceHierarchy, HostsSendTheTensorOnceOrTwice) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Ranks ranks = ranks_of({0, 2, 4}, 6, 50, dtype);
    plan(ranks);
    const int64_t raw = ranks.c.problem.count * size_of(dtype), wide = ranks.c.problem.count * size_of(wide_of(dtype));
    const int64_t wanted[] = {wide + raw, wide, raw};
    for (int host = 0; host < 3; ++host) {
      const int64_t sent = collective::totals(ranks.plans[2 * host]).bytes_sent +
                           collective::totals(ranks.plans[2 * host + 1]).bytes_sent;
      EXPECT_EQ(sent, wanted[host]) << host;
    }
  }
}

TEST(DeviceHierarchy, ScratchIsTwoSegmentsWhateverTheCount) {
  for (const int64_t packs : {50, 5000}) {
    Ranks ranks = ranks_of({0, 2, 4}, 6, packs);
    plan(ranks);
    for (const Plan& one : ranks.plans) EXPECT_LE(one.scratch_bytes, 2 * 64);
  }
}

TEST(DeviceHierarchy, RoundsArePrinted) {
  Ranks ranks = ranks_of({0, 2}, 3, 2);
  plan(ranks);
  EXPECT_EQ(text_of(ranks.plans[0], rounds_of(ranks.plans[0])),
            "round 0: arrive; await the host's ranks; fold 2 x 8\n"
            "round 1: send 32 B to 2\n"
            "round 2: receive 32 B from 2; copy 32 B; arrive; await the host's ranks\n");
  EXPECT_EQ(text_of(ranks.plans[2], rounds_of(ranks.plans[2])),
            "round 0: \nround 1: receive 32 B from 0; fold 2 x 8\nround 2: send 32 B to 0\n");
}

}  // namespace
}  // namespace ringdp::plan::testing
