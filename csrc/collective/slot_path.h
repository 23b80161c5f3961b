// Whether what a rank stages for others goes through the caches or past them. Learned as it runs, because it depends on
// where the ranks' cores lie, which may change.
//
// Cores under one last-level cache hand each other modified lines faster than memory is; cores on two sockets or
// chiplets, or of a virtual machine whose host has moved them apart, several times slower. Measured with 2 ranks on 64
// MiB of ordinary tensors: through the caches 8 ms together and 43 ms apart, past them 13 ms and 10 ms.
//
// Every rank counts the same plans, so that all try the other way in the same one, and each decides by what its own
// large steps on slots took. A wrong decision costs time only. Owned by a group, used by its driver.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ringdp::collective {

class SlotPath {
 public:
  static constexpr size_t kLarge = 64 << 10;  // bytes; smaller steps always go through the caches, and tell nothing

  // A plan with so many slot stages begins.
  void begin(uint64_t stages);
  bool past_caches() const { return past_; }  // in this plan
  enum class Work { kCopyIn, kFold, kCopyOut };
  // A step of this rank has read or written `bytes`, some of them in slots.
  void saw(Work work, size_t bytes, std::chrono::nanoseconds took);

 private:
  double cost_of_plan();  // 0 without enough samples

  bool past_ = false;
  uint64_t plans_ = 0;              // long ones, so far
  std::vector<double> samples_[3];  // by work: ns per byte, of this plan's steps
  double cost_[2] = {0, 0};         // of the last plan through the caches, and past them; 0: not tried yet
};

// Tells the path what a step took that lasts as long as this, when it is a large one on slots.
class SlotWatch {
 public:
  SlotWatch(SlotPath& path, const plan::Step& step, size_t bytes);
  ~SlotWatch();
  SlotWatch(const SlotWatch&) = delete;
  SlotWatch& operator=(const SlotWatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  SlotPath& path_;
  const plan::Step& step_;
  const size_t bytes_;  // 0: tells nothing
  Clock::time_point start_;
};

}  // namespace ringdp::collective
