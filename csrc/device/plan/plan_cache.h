// The plans that a rank has made: a plan depends only on its problem, so it is made once and kept.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "device/plan/catalog.h"

namespace ringdp::plan {

// Made: a plan, over memory or between hosts, or what is derived from one. Thread-safe; `make` runs under the lock.
// Keeps at most kMaxPlans; launches that use an older one hold it.
template <class Made>
class DevicePlanCache {
 public:
  static constexpr size_t kMaxPlans = 128;
  using Make = std::function<Made(DeviceAlgorithm, const Problem&)>;

  explicit DevicePlanCache(Make make) : make_(std::move(make)) {}

  // What `make` returns, or throws.
  std::shared_ptr<const Made> plan_for(DeviceAlgorithm algorithm, const Problem& p) {
    const Key key{algorithm, p.what, p.dtype, p.op, p.rank, p.world, p.root, p.count, p.segment_bytes};
    const std::lock_guard lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    if (plans_.size() >= kMaxPlans) plans_.clear();
    auto plan = std::make_shared<const Made>(make_(algorithm, p));
    plans_.emplace(key, plan);
    return plan;
  }

 private:
  // All that callers set of a problem; the rest has its defaults.
  using Key = std::tuple<DeviceAlgorithm, Collective, DType, ReduceOp, int, int, int, int64_t, int64_t>;

  const Make make_;
  std::mutex mutex_;  // guards plans_
  std::map<Key, std::shared_ptr<const Made>> plans_;
};

}  // namespace ringdp::plan
