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

std::vector<std::shared_ptr<comm::Group>> remembered() {
  std::vector<std::shared_ptr<comm::Group>> alive;
  const std::lock_guard lock(registry().mutex);
  for (const auto& group : registry().groups) {
    if (auto held = group.lock()) alive.push_back(std::move(held));
  }
  return alive;
}

void leave_all() {
  for (const auto& group : remembered()) group->leave();
}

}  // namespace ringdp::backend
