// How a launch learns that it has been aborted, and how it ends.
//
// The abort word is in host memory, and reads of it go one after another, a microsecond each on an H100. So the first
// block that comes reads it, and the others take what it has found from device memory. Of the threads that wait one
// reads it in every tick of the clock, and the others see in device memory whether one has found it set.
#pragma once
#include "device/kernel/work.h"

namespace ringdp::gpu {

// Of Epoch::look.
constexpr uint32_t kNotLooked = 0, kLooks = 1, kGoesOn = 2, kAborted = 3;

// Whether the group has failed or ended; the same on all threads of all blocks of the launch.
template <class Prim>
__device__ bool is_aborted(Epoch& epoch, const uint32_t* abort) {
  uint32_t seen = kNotLooked;
  while (Prim::thread() == 0 && (seen = Prim::load_acquire(&epoch.look)) < kGoesOn) {
    if (seen == kLooks || Prim::compare_and_swap(&epoch.look, kNotLooked, kLooks) != kNotLooked) continue;
    Prim::store_release(&epoch.look, Prim::load_acquire(abort) != 0 ? kAborted : kGoesOn);
  }
  return Prim::sync_or(seen == kAborted);
}

constexpr int kTickBits = 20;  // nanoseconds: a tick is a millisecond

// Whether a thread that waits is to give up, because the group has failed or ended. `now`: of a clock in nanoseconds.
template <class Prim>
__device__ bool is_ended(Epoch& epoch, const uint32_t* abort, uint64_t now) {
  if (Prim::load_acquire(&epoch.aborted) != 0) return true;
  const uint32_t tick = static_cast<uint32_t>(now >> kTickBits), last = Prim::load_acquire(&epoch.look_tick);
  if (tick == last || Prim::compare_and_swap(&epoch.look_tick, last, tick) != last) return false;
  if (Prim::load_acquire(abort) == 0) return false;
  Prim::store_release(&epoch.aborted, 1u);
  return true;
}

// Ends the launch for this block. True on one thread of the last one, after which the next launch may look.
template <class Prim>
__device__ bool is_last(Epoch& epoch, int blocks) {
  Prim::sync();
  if (Prim::thread() != 0) return false;
  if (Prim::add_one(&epoch.finished_blocks) + 1 < static_cast<uint32_t>(blocks)) return false;
  Prim::store_release(&epoch.finished_blocks, 0u);
  Prim::store_release(&epoch.look, kNotLooked);
  return true;
}

}  // namespace ringdp::gpu
