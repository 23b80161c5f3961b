// The clock of ranks on host threads: it stands still while a thread that runs has not looked at it, so that no machine
// is too busy for a deadline.
//
// A thread looks where it waits, after many polls. So a tick passes only once everybody who might still bring what
// others wait for waits too; who is in a barrier of its block cannot. Relaxed on purpose: a thread sanitizer must not
// take the clock for what orders the ranks' accesses. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace ringdp::gpu::testing {

class HostClock {
 public:
  // All asleep.
  explicit HostClock(int threads) : looked_(threads) {
    for (auto& looked : looked_) looked = kAsleep;
  }

  uint64_t look(int thread) {
    uint64_t now = now_.load(std::memory_order_relaxed);
    looked_[thread].store(now, std::memory_order_relaxed);
    bool have_all_looked = true;
    for (const auto& looked : looked_) have_all_looked &= looked.load(std::memory_order_relaxed) >= now;
    if (have_all_looked) now_.compare_exchange_strong(now, now + 1, std::memory_order_relaxed);
    return now * kTickNs;
  }
  void sleep(int thread) { looked_[thread].store(kAsleep, std::memory_order_relaxed); }
  void wake(int thread) { looked_[thread].store(0, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kAsleep = UINT64_MAX, kTickNs = 40'000'000;
  std::atomic<uint64_t> now_{1};
  std::vector<std::atomic<uint64_t>> looked_;  // the tick at which each thread looked last
};

// What a barrier does before it lets its threads go.
struct WakeThreads {
  HostClock* clock = nullptr;
  int first = 0, count = 0;

  void operator()() noexcept {
    for (int t = first; clock != nullptr && t < first + count; ++t) clock->wake(t);
  }
};

}  // namespace ringdp::gpu::testing
