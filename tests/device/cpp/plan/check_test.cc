#include "device/plan/check.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cpp/plan/cases.h"

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
      {"no such peer", [](DevicePlan& plan, DeviceStep&) { plan.steps[0].peer = 0; }},
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
}

}  // namespace
}  // namespace ringdp::plan::testing
