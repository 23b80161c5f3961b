#include "device/plan/catalog.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "device/cpp/plan/cases.h"

namespace ringdp::plan::testing {
namespace {

std::string refusal(DeviceAlgorithm algorithm, const Problem& problem) {
  try {
    make_device_plan(algorithm, problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(DeviceCatalog, NamesWhatItRefuses) {
  const struct {
    const char* named;
    void (*change)(Problem&);
  } cases[] = {
      {"world=9 must be in [1, 8]", [](Problem& p) { p.world = 9; }},
      {"world=0", [](Problem& p) { p.world = 0; }},
      {"rank=4", [](Problem& p) { p.rank = 4; }},
      {"root=-1", [](Problem& p) { p.root = -1; }},
      {"count=6 of float32 is no multiple of 4", [](Problem& p) { p.count = 6; }},
      {"count=-4", [](Problem& p) { p.count = -4; }},
      {"a barrier moves nothing", [](Problem& p) { p.what = Collective::kBarrier; }},
      {"does not fit", [](Problem& p) { p.count = int64_t{1} << 62; }},
      {"segment_bytes=0", [](Problem& p) { p.segment_bytes = 0; }},
      {"dtype=complex64", [](Problem& p) { p.dtype = DType::kC64; }},
      {"dtype=float8_e4m3fn", [](Problem& p) { p.dtype = DType::kF8E4M3FN; }},
      {"BAND has no meaning on float32", [](Problem& p) { p.op = ReduceOp::kBand; }},
  };
  for (const auto& one : cases) {
    Problem problem = device_problem({DeviceAlgorithm::kDirect, Collective::kAllReduce}, 4, 4);
    one.change(problem);
    EXPECT_NE(refusal(DeviceAlgorithm::kDirect, problem).find(one.named), std::string::npos)
        << one.named << ": " << refusal(DeviceAlgorithm::kDirect, problem);
  }
}

TEST(DeviceCatalog, RefusesAlgorithmsThatHaveNoSuchPlan) {
  EXPECT_NE(refusal(DeviceAlgorithm::kRankRing, device_problem({DeviceAlgorithm::kDirect, Collective::kGather}, 4, 4))
                .find("algorithm=ring/rank has no device plan for gather"),
            std::string::npos);
  for (int a = 0; a < kDeviceAlgorithmCount; ++a) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      const DeviceKind kind = {static_cast<DeviceAlgorithm>(a), static_cast<Collective>(c)};
      EXPECT_EQ(refusal(kind.algorithm, device_problem(kind, 4, 4)).empty(), can_plan(kind.algorithm, kind.what))
          << text_of(kind);
    }
  }
}

bool touches_tensor_of_other(const DevicePlan& plan, const DeviceRef& ref) {
  const bool is_tensor = ref.space == DeviceSpace::kInput || ref.space == DeviceSpace::kOutput;
  return is_tensor && ref.rank != kOwnRank && ref.rank != plan.rank && plan.world > 1;
}

bool touches_tensors_of_others(const DevicePlan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const DeviceStep& step) {
    const bool moves = !is_flag(step);
    return moves && (touches_tensor_of_other(plan, step.from) || touches_tensor_of_other(plan, step.to));
  });
}

TEST(DeviceCatalog, TensorsMayLieAnywhereOnlyWhereNoRankTouchesThoseOfOthers) {
  for (const DeviceKind& kind : device_kinds()) {
    if (kind.what == Collective::kBarrier) continue;
    for (const int world : {1, 2, 3, 8}) {
      const auto plans = device_plans(kind.algorithm, device_problem(kind, world, 2 * world));
      const bool any = std::any_of(plans.begin(), plans.end(), touches_tensors_of_others);
      const bool may = is_on_own_tensors(kind.algorithm, kind.what, world);
      EXPECT_FALSE(may && any) << text_of(kind) << " of " << world;
      EXPECT_TRUE(may || any || kind.what != Collective::kAllReduce) << text_of(kind) << " of " << world;
    }
  }
}

TEST(DeviceCatalog, OneRankCopiesOrDivides) {
  for (const DeviceKind& kind : device_kinds()) {
    Problem problem = device_problem(kind, 1, 4);
    const DevicePlan copy = make_device_plan(kind.algorithm, problem);
    EXPECT_EQ(copy.steps.size(), kind.what == Collective::kBarrier ? 0u : 1u) << text_of(kind);
    for (const DeviceStep& step : copy.steps) EXPECT_EQ(step.verb, DeviceVerb::kCopy);
    problem.op = ReduceOp::kAvg;
    const bool sums = is_reduction(kind.what);
    for (const DeviceStep& step : make_device_plan(kind.algorithm, problem).steps) {
      EXPECT_EQ(step.verb, sums ? DeviceVerb::kSum : DeviceVerb::kCopy);
    }
  }
}

// The next plan counts on everybody's having begun this one, also where it has nothing to move.
TEST(DeviceCatalog, RanksMeetWhereThereIsNothingToMove) {
  for (const DeviceKind& kind : device_kinds()) {
    const DevicePlan plan = make_device_plan(kind.algorithm, device_problem(kind, 4, 0));
    EXPECT_EQ(plan.steps.size(), 6u) << text_of(kind);
    EXPECT_EQ(plan.what, kind.what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
