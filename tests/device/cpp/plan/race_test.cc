#include "device/plan/race.h"

#include <gtest/gtest.h>

#include "device/cpp/plan/cases.h"

namespace ringdp::plan::testing {
namespace {

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
          EXPECT_EQ(find_race({first, small[k], first}, 2, in_place), "")
              << text_of(first) << ", " << text_of(small[k]);
          EXPECT_EQ(find_race({first, large[k], first}, 3, in_place), "")
              << text_of(first) << ", " << text_of(large[k]);
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
      if (!find_race({plans, other, plans}, 2, in_place).empty()) return true;
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
  EXPECT_EQ(find_race({plans}, 2, false), "");
  for (DevicePlan& plan : plans) {
    DeviceStep half = plan.steps[0];
    half.count /= 2;
    plan.steps[0].count -= half.count;
    plan.steps[0].from.offset = plan.steps[0].to.offset = half.count;
    plan.steps.insert(plan.steps.begin(), half);
  }
  const std::string race = find_race({plans}, 2, false);
  EXPECT_NE(race.find("of all -> output"), std::string::npos) << race;
  EXPECT_EQ(find_race({plans}, 1, false), "");
}

TEST(DeviceRace, FindsARankThatLeavesUnheard) {
  Plans plans =
      device_plans(DeviceAlgorithm::kDirect, device_problem({DeviceAlgorithm::kDirect, Collective::kBarrier}, 3, 0));
  EXPECT_NE(find_race({without_flag(plans, 1, 0)}, 1, false).find("without having heard that rank 1 has begun"),
            std::string::npos);
}

}  // namespace
}  // namespace ringdp::plan::testing
