#include "device/plan/plan_cache.h"

namespace ringdp::plan {

std::shared_ptr<const DevicePlan> DevicePlanCache::plan_for(DeviceAlgorithm algorithm, const Problem& p) {
  const Key key{algorithm, p.what, p.dtype, p.op, p.rank, p.world, p.root, p.count, p.segment_bytes};
  const std::lock_guard lock(mutex_);
  if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  auto plan = std::make_shared<const DevicePlan>(make_device_plan(algorithm, p));
  plans_.emplace(key, plan);
  return plan;
}

}  // namespace ringdp::plan
