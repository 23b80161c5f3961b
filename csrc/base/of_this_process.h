// What a process has for itself, and a forked child makes anew.
#pragma once
#include <unistd.h>

#include <atomic>
#include <memory>

namespace ringdp {

// Made at first use and never destroyed; again in a forked child, which leaves alone what its parent's threads, or
// locks that they held, have left behind in its copy. Any thread.
template <class Thing>
class OfThisProcess {
 public:
  Thing& get() {
    Held* held = held_.load(std::memory_order_acquire);
    while (held == nullptr || held->pid != ::getpid()) {
      auto fresh = std::make_unique<Held>();
      if (held_.compare_exchange_strong(held, fresh.get(), std::memory_order_acq_rel)) held = fresh.release();
    }
    return held->thing;
  }

  Thing* known() const {  // null: not made so far
    Held* const held = held_.load(std::memory_order_acquire);
    return held != nullptr && held->pid == ::getpid() ? &held->thing : nullptr;
  }

 private:
  struct Held {
    const pid_t pid = ::getpid();
    Thing thing;
  };
  std::atomic<Held*> held_{nullptr};
};

}  // namespace ringdp
