// Plans are made once: for every problem the one that make_device_plan() returns, and no other problem's.
#include "device/plan/plan_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cpp/plan/cases.h"

namespace ringdp::plan {
namespace {

using testing::device_kinds;
using testing::device_problem;

std::vector<Problem> problems_of(const testing::DeviceKind& kind) {
  std::vector<Problem> problems;
  for (const int world : {1, 2, 4}) {
    for (const int64_t packs : {1, 9}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        problems.push_back(device_problem(kind, world, packs, dtype));
        problems.push_back(problems.back());
        problems.back().rank = world - 1;
        problems.back().root = 0;
        if (is_reduction(kind.what)) problems.back().op = ReduceOp::kAvg;
      }
    }
  }
  return problems;
}

TEST(DevicePlanCache, HasThePlanOfEveryProblem) {
  DevicePlanCache<DevicePlan> cache(make_device_plan);
  for (int round = 0; round < 2; ++round) {
    for (const auto& kind : device_kinds()) {
      for (const Problem& problem : problems_of(kind)) {
        const auto plan = cache.plan_for(kind.algorithm, problem);
        EXPECT_EQ(text_of(*plan), text_of(make_device_plan(kind.algorithm, problem)));
        EXPECT_EQ(plan->stage_bytes, make_device_plan(kind.algorithm, problem).stage_bytes);
      }
    }
  }
}

TEST(DevicePlanCache, MakesAPlanOnceAndForgetsWhenFull) {
  DevicePlanCache<DevicePlan> cache(make_device_plan);
  const auto plan_of = [&](int64_t packs) {
    const testing::DeviceKind kind = {DeviceAlgorithm::kDirect, Collective::kAllReduce};
    return cache.plan_for(kind.algorithm, device_problem(kind, 2, packs));
  };
  const auto first = plan_of(1);
  EXPECT_EQ(plan_of(1), first);
  for (size_t packs = 1; packs <= DevicePlanCache<DevicePlan>::kMaxPlans + 1; ++packs)
    plan_of(static_cast<int64_t>(packs));
  const auto again = plan_of(1);
  EXPECT_NE(again, first);
  EXPECT_EQ(text_of(*again), text_of(*first));
}

TEST(DevicePlanCache, KeepsNothingOfAProblemWithoutAPlan) {
  DevicePlanCache<DevicePlan> cache(make_device_plan);
  const testing::DeviceKind kind = {DeviceAlgorithm::kDirect, Collective::kAllReduce};
  Problem problem = device_problem(kind, 2, 1);
  problem.count = 1;  // of a pack of 4
  for (int k = 0; k < 2; ++k) EXPECT_THROW(cache.plan_for(kind.algorithm, problem), Error);
}

}  // namespace
}  // namespace ringdp::plan
