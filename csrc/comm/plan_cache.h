// The plans of a group's collectives. A plan is made once and kept.
//
// choice() and description() may be called by any thread, the rest only by the driver.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "collective/select.h"
#include "comm/bootstrap.h"
#include "comm/fingerprint.h"
#include "plan/plan.h"

namespace ringdp::comm {

class PlanCache {
 public:
  explicit PlanCache(const Mesh& mesh);  // outlives the cache

  collective::Choice choice(plan::Collective what, int64_t bytes) const {
    return collective::select(mesh_.settings, topology_, what, bytes);
  }
  std::string description() const { return collective::describe_choices(mesh_.settings, topology_); }
  bool always_uses_arena() const { return always_uses_arena_; }  // for every collective and size

  plan::Problem problem_of(const OpDesc& desc) const;
  std::shared_ptr<const plan::Plan> plan_for(const plan::Problem& problem);

 private:
  using Counts = std::vector<int64_t>;
  using Key = std::tuple<plan::Collective, DType, ReduceOp, int32_t, int64_t, Counts, Counts, Counts, Counts, bool>;

  const Mesh& mesh_;
  const collective::Topology topology_;
  const bool always_uses_arena_;
  std::map<Key, std::shared_ptr<const plan::Plan>> plans_;
};

}  // namespace ringdp::comm
