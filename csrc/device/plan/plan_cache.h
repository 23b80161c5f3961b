// The device plans that a rank has made: a plan depends only on its problem, so it is made once and kept.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "device/plan/catalog.h"

namespace ringdp::plan {

// Thread-safe. Keeps at most kMaxPlans; launches that use an older one hold it.
class DevicePlanCache {
 public:
  static constexpr size_t kMaxPlans = 128;

  // What make_device_plan() returns, or throws.
  std::shared_ptr<const DevicePlan> plan_for(DeviceAlgorithm algorithm, const Problem& problem);

 private:
  // All that make_device_plan() reads of a problem.
  using Key = std::tuple<DeviceAlgorithm, Collective, DType, ReduceOp, int, int, int, int64_t, int64_t>;

  std::mutex mutex_;  // guards plans_
  std::map<Key, std::shared_ptr<const DevicePlan>> plans_;
};

}  // namespace ringdp::plan
