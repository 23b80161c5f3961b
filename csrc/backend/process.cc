#include "backend/process.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/last_words.h"
#include "base/env.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

// Threads do not survive fork(): a child makes its own, and leaves alone what its parent's have left behind.
template <class Threads>
class OfThisProcess {
 public:
  Threads& get() {
    Held* held = held_.load(std::memory_order_acquire);
    while (held == nullptr || held->pid != ::getpid()) {
      auto fresh = std::make_unique<Held>();
      if (held_.compare_exchange_strong(held, fresh.get(), std::memory_order_acq_rel)) held = fresh.release();
    }
    return held->threads;
  }

  Threads* known() const {  // null: not made so far
    Held* const held = held_.load(std::memory_order_acquire);
    return held != nullptr && held->pid == ::getpid() ? &held->threads : nullptr;
  }

 private:
  struct Held {
    const pid_t pid = ::getpid();
    Threads threads;
  };
  std::atomic<Held*> held_{nullptr};
};

struct LoggingRuntime {
  LoggingRuntime() { set_log_level(log_level_from_environment()); }
  comm::Runtime runtime;
};

OfThisProcess<Completion>& completions() {
  static OfThisProcess<Completion> instance;
  return instance;
}

std::atomic<pid_t> ending_thread{0};  // 0: the process goes on

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
  static OfThisProcess<LoggingRuntime> instance;
  return instance.get().runtime;
}

Completion& completion() {
  return completions().get().for_caller();
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

void leave_groups() {
  const std::string words = last_words();
  for (const auto& group : remembered()) group->leave(words);
}

void leave_all() {
  constexpr auto kPatience = std::chrono::seconds(1);
  ending_thread = ::gettid();
  leave_groups();
  if (Completion* const known = completions().known()) known->end(Deadline::after(kPatience));
}

void stay_if_the_process_ends() {
  const pid_t ending = ending_thread;
  while (ending != 0 && ending != ::gettid()) ::pause();
}

}  // namespace ringdp::backend
