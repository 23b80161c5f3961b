#include "backend/process.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/env.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

comm::Runtime* make_runtime() {
  set_log_level(log_level_from_environment());
  return new comm::Runtime;
}

struct Registry {
  std::mutex mutex;  // guards groups
  std::vector<std::weak_ptr<comm::Group>> groups;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

comm::Runtime& runtime() {
  static comm::Runtime* const instance = make_runtime();
  return *instance;
}

Completion& completion() {
  static Completion* const instance = new Completion;
  return instance->for_caller();
}

void remember(const std::shared_ptr<comm::Group>& group) {
  const std::lock_guard lock(registry().mutex);
  auto& groups = registry().groups;
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](const auto& old) { return old.expired(); }), groups.end());
  groups.push_back(group);
}

void leave_all() {
  std::vector<std::weak_ptr<comm::Group>> groups;
  {
    const std::lock_guard lock(registry().mutex);
    groups = registry().groups;
  }
  for (const auto& group : groups) {
    if (const auto alive = group.lock()) alive->leave();
  }
}

}  // namespace ringdp::backend
