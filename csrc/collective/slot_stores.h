// Chooses ordinary or non-temporal stores for what a rank stages for others. Learned at run time, because it depends on
// the cores on which the ranks run, which may change.
//
// Cores that share a last-level cache pass modified lines to each other faster than memory does; cores on two sockets
// or chiplets, or of a virtual machine whose host has moved them apart, several times more slowly. Measured with 2
// ranks on 64 MiB of ordinary tensors: ordinary stores 8 ms (shared cache) and 43 ms (apart), non-temporal ones 13 and
// 10 ms.
//
// All ranks count the same plans, so they try the other kind in the same one; each decides by the time that its own
// large steps on slots took. A wrong decision costs only time. Owned by a group, used by its driver.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ringdp::collective {

class SlotStores {
 public:
  static constexpr size_t kLarge = 64 << 10;  // bytes; smaller steps always use ordinary stores and are not measured

  // A plan with this many stages begins.
  void begin(uint64_t stages);
  bool nontemporal() const { return nontemporal_; }  // for the current plan
  enum class Work { kCopyIn, kFold, kCopyOut };
  // A step of this rank, with sources or destinations in slots, has moved `bytes`.
  void measured(Work work, size_t bytes, std::chrono::nanoseconds took);

 private:
  double cost_of_plan();  // 0 without enough samples

  bool nontemporal_ = false;
  uint64_t plans_ = 0;              // with many stages, so far
  std::vector<double> samples_[3];  // by work: ns per byte, of this plan's steps
  double cost_[2] = {0, 0};  // ns per byte of the last plan with ordinary and with non-temporal stores; 0: none yet
};

// Measures a step from its construction to its destruction, if it is a large one on slots.
class SlotTimer {
 public:
  SlotTimer(SlotStores& stores, const plan::Step& step, size_t bytes);
  ~SlotTimer();
  SlotTimer(const SlotTimer&) = delete;
  SlotTimer& operator=(const SlotTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  SlotStores& stores_;
  const plan::Step& step_;
  const size_t bytes_;  // 0: not measured
  Clock::time_point start_;
};

}  // namespace ringdp::collective
