// Device plans that do not fit together are refused, and accesses that nothing orders are found.
#include "device/plan/check.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cpp/plan/cases.h"
#include "device/plan/race.h"

namespace ringdp::plan::testing {
namespace {

std::string refusal(const std::vector<DevicePlan>& plans) {
  try {
    check_together(plans);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    return error.what();
  }
  return "";
}

TEST(DeviceCheck, AcceptsEveryPlan) {
  for (const DeviceKind& kind : device_kinds()) {
    for (int world = 1; world <= kMaxDeviceRanks; ++world) {
      for (const int64_t packs : {0, 1, 3, 8, 17, 64}) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8}) {
          Problem problem = device_problem(kind, world, packs, dtype);
          for (problem.segment_bytes = 16; problem.segment_bytes <= 4096; problem.segment_bytes *= 16) {
            EXPECT_EQ(refusal(device_plans(kind.algorithm, problem)), "")
                << text_of(kind) << " " << world << " " << packs;
          }
        }
      }
    }
  }
}

// Every flag of every plan, one at a time: not posted, not awaited, posted or awaited as a smaller value.
TEST(DeviceCheck, RefusesAnyFlagThatIsMissingOrSmaller) {
  for (const DeviceKind& kind : device_kinds()) {
    for (const int world : {2, 3, 8}) {
      const std::vector<DevicePlan> plans = device_plans(kind.algorithm, device_problem(kind, world, 17));
      for (int r = 0; r < world; ++r) {
        for (size_t s = 0; s < plans[r].steps.size(); ++s) {
          const DeviceVerb verb = plans[r].steps[s].verb;
          if (verb != DeviceVerb::kPost && verb != DeviceVerb::kAwait) continue;
          std::vector<DevicePlan> without = plans, smaller = plans;
          without[r].steps.erase(without[r].steps.begin() + static_cast<int64_t>(s));
          --smaller[r].steps[s].value;
          EXPECT_NE(refusal(without), "") << text_of(kind) << " rank " << r << " step " << s;
          EXPECT_NE(refusal(smaller), "") << text_of(kind) << " rank " << r << " step " << s;
        }
      }
    }
  }
}

TEST(DeviceCheck, FindsRanksThatWaitForEachOther) {
  std::vector<DevicePlan> plans =
      device_plans(DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, Collective::kBarrier}, 2, 0));
  for (DevicePlan& plan : plans) std::swap(plan.steps[0], plan.steps[1]);
  EXPECT_NE(refusal(plans).find("rank 0 never gets past step 0 (await entry 1 of 1)"), std::string::npos)
      << refusal(plans);
}

struct Mutation {
  const char* named;
  void (*mutate)(DevicePlan&, DeviceStep&);  // the plan's one movement
};

TEST(DeviceCheck, NamesWhatIsWrongWithAMovement) {
  const Mutation mutations[] = {
      {"no whole pack", [](DevicePlan&, DeviceStep& step) { step.count -= 1; }},
      {"no whole pack", [](DevicePlan&, DeviceStep& step) { step.count = 0; }},
      {"starts within a pack", [](DevicePlan&, DeviceStep& step) { step.to.offset += 1; }},
      {"output ends before", [](DevicePlan& plan, DeviceStep&) { plan.output = 4; }},
      {"input ends before", [](DevicePlan&, DeviceStep& step) { step.from.offset += 4; }},
      {"starts within a pack", [](DevicePlan&, DeviceStep& step) { step.from.offset = -4; }},
      {"there is no rank 2", [](DevicePlan&, DeviceStep& step) { step.to.rank = 2; }},
      {"only an addition has wide sums", [](DevicePlan&, DeviceStep& step) { step.to.wide = true; }},
      {"only a push goes to pushed memory",
       [](DevicePlan& plan, DeviceStep& step) {
         step.to.space = DeviceSpace::kPushed;
         plan.pushed_bytes = 1 << 20;
       }},
      {"it is too long", [](DevicePlan& plan, DeviceStep&) { plan.steps.resize(kMaxDeviceSteps + 1); }},
      {"its world is 9", [](DevicePlan& plan, DeviceStep&) { plan.world = 9; }},
      {"its rank is 2", [](DevicePlan& plan, DeviceStep&) { plan.rank = 2; }},
      {"its rank is -1", [](DevicePlan& plan, DeviceStep&) { plan.rank = -1; }},
      {"no such peer", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].peer = 0; }},
      {"no such peer", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].peer = -1; }},
      {"no such peer", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].peer = 2; }},
      {"only an addition has wide sums", [](DevicePlan&, DeviceStep& step) { step.from.wide = true; }},
      {"no such slot", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].slot = kMaxDeviceSlots; }},
      {"the last value was 0", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].value = 0; }},
  };
  for (const Mutation& mutation : mutations) {
    std::vector<DevicePlan> plans = device_plans(
        DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, Collective::kAllGather}, 2, 4));
    mutation.mutate(plans[0], plans[0].steps[2]);
    EXPECT_NE(refusal({plans[0]}).find(mutation.named), std::string::npos)
        << mutation.named << ": " << refusal({plans[0]});
  }
}

TEST(DeviceCheck, RefusesPlansOfOtherRanks) {
  std::vector<DevicePlan> plans =
      device_plans(DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, Collective::kAllGather}, 3, 4));
  std::swap(plans[0], plans[1]);
  EXPECT_NE(refusal(plans).find("plan 0 of 3 is of rank 1 of 3"), std::string::npos) << refusal(plans);
  std::swap(plans[0], plans[1]);
  plans.pop_back();
  EXPECT_NE(refusal(plans).find("plan 0 of 2 is of rank 0 of 3"), std::string::npos) << refusal(plans);
}

using Plans = std::vector<DevicePlan>;

// Every kind of plan, of `packs` packs; an all_reduce of several segments.
std::vector<Plans> all_plans(int world, int64_t packs) {
  std::vector<Plans> plans;
  for (const DeviceKind& kind : device_kinds()) {
    Problem problem = device_problem(kind, world, packs, DType::kBF16);
    if (kind.what == Collective::kAllReduce) problem.segment_bytes = 32;
    plans.push_back(device_plans(kind.algorithm, problem));
  }
  return plans;
}

std::string text_of(const Plans& plans) { return ringdp::plan::text_of(plans[0]).substr(0, 60); }

TEST(DeviceRace, NoPlanRacesWithAnyBeforeOrAfterIt) {
  for (const int world : {2, 3, 4, 5}) {
    const std::vector<Plans> small = all_plans(world, 11), large = all_plans(world, 40);
    for (const Plans& first : small) {
      for (size_t k = 0; k < small.size(); ++k) {
        for (const bool in_place : {false, true}) {
          EXPECT_EQ(find_race({first, small[k], first}, {2, 2, 2}, in_place), "")
              << text_of(first) << ", " << text_of(small[k]);
          // As many blocks as a launch is large.
          EXPECT_EQ(find_race({first, large[k], first}, {1, 3, 2}, in_place), "")
              << text_of(first) << ", " << text_of(large[k]);
          EXPECT_EQ(find_race({large[k], first, large[k]}, {3, 1, 3}, in_place), "")
              << text_of(large[k]) << ", " << text_of(first);
        }
      }
    }
  }
}

// Both ends of one flag.
Plans without_flag(Plans plans, int writer, size_t step) {
  const DeviceStep post = plans[writer].steps[step];
  plans[writer].steps.erase(plans[writer].steps.begin() + static_cast<int64_t>(step));
  std::vector<DeviceStep>& steps = plans[post.peer].steps;
  for (auto await = steps.begin(); await != steps.end(); ++await) {
    const bool same = await->verb == DeviceVerb::kAwait && await->peer == writer && await->slot == post.slot;
    if (!same || await->value != post.value) continue;
    steps.erase(await);
    break;
  }
  return plans;
}

bool races_with_any(const Plans& plans, const std::vector<Plans>& others) {
  for (const Plans& other : others) {
    for (const bool in_place : {false, true}) {
      if (!find_race({plans, other, plans}, {2, 2, 2}, in_place).empty()) return true;
    }
  }
  return false;
}

// So there is none too many either.
TEST(DeviceRace, EveryFlagOfEveryPlanIsNeeded) {
  for (const int world : {2, 3, 4}) {
    const std::vector<Plans> plans = all_plans(world, 11);
    for (const Plans& all : plans) {
      for (const DevicePlan& plan : all) {
        for (size_t s = 0; s < plan.steps.size(); ++s) {
          if (plan.steps[s].verb != DeviceVerb::kPost) continue;
          EXPECT_TRUE(races_with_any(without_flag(all, plan.rank, s), plans))
              << text_of(all) << " rank " << plan.rank << " step " << s << " " << ringdp::plan::text_of(plan.steps[s]);
        }
      }
    }
  }
}

// Block b meets block b only, so another division among blocks is seen by nobody's flags.
TEST(DeviceRace, FindsStepsThatBlocksDivideDifferently) {
  Plans plans = device_plans(DeviceAlgorithm::kOneShot,
                             device_problem({DeviceAlgorithm::kOneShot, Collective::kAllReduce}, 2, 8));
  EXPECT_EQ(find_race({plans}, {2}, false), "");
  for (DevicePlan& plan : plans) {
    DeviceStep half = plan.steps[0];
    half.count /= 2;
    plan.steps[0].count -= half.count;
    plan.steps[0].from.offset = plan.steps[0].to.offset = half.count;
    plan.steps.insert(plan.steps.begin(), half);
  }
  const std::string race = find_race({plans}, {2}, false);
  EXPECT_NE(race.find("of all -> output"), std::string::npos) << race;
  EXPECT_EQ(find_race({plans}, {1}, false), "");
}

TEST(DeviceRace, FindsARankThatLeavesUnheard) {
  Plans plans =
      device_plans(DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, Collective::kBarrier}, 3, 0));
  EXPECT_NE(find_race({without_flag(plans, 1, 0)}, {1}, false).find("without having heard that rank 1 has begun"),
            std::string::npos);
}

}  // namespace
}  // namespace ringdp::plan::testing
