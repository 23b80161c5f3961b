// How a launch learns that it has been aborted, and how it ends.
//
// The abort word is in host memory, and reads of it go one after another, a microsecond each on an H100. So the first
// block that comes reads it, and the others take what it has found from device memory.
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
