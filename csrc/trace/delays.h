// Who made the others of a group wait, from how long each rank waited in each collective. No clock is compared with
// another: whoever waits least came last, and by how much is how long the next one waited.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringdp::trace {

// What a collective would have gained, had its last rank come with the one before it.
struct Delay {
  int rank = -1;   // the last to come
  int64_t ns = 0;  // 0: nobody was last, or not all ranks' waits are known
};
Delay delay_of(const std::vector<int64_t>& waits_ns);  // by rank; negative: unknown

// Sums over a group's collectives. Written by the driver, read by any thread.
class Delays {
 public:
  explicit Delays(int world) : world_(world), ns_(new std::atomic<int64_t>[world]()) {}
  void add(const Delay& delay) {
    if (delay.ns > 0) ns_[delay.rank].fetch_add(delay.ns, std::memory_order_relaxed);
  }
  std::vector<int64_t> by_rank() const { return {ns_.get(), ns_.get() + world_}; }

 private:
  const int world_;
  const std::unique_ptr<std::atomic<int64_t>[]> ns_;
};

}  // namespace ringdp::trace
