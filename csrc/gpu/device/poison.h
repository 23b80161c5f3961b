// What a collective that was given up leaves behind: NaN, never a number that is not the sum.
//
// Runs in the stream's order between a plan and the copy of its result to the caller's tensor. All bits one are a NaN of
// every floating type there is.
#pragma once
#include "gpu/device/element.h"

namespace ringdp::gpu {

// Plain data: the argument of a kernel.
struct PoisonWork {
  char* memory;           // whole packs
  int64_t bytes;
  const uint32_t* abort;  // host-mapped: not 0: the memory becomes NaN; 0: it stays
};

// One thread of a block looks: the word lies behind PCIe.
template <class Prim>
__device__ void run_poison(const PoisonWork& work) {
  const bool given_up = Prim::thread() == 0 && Prim::load_acquire(work.abort) != 0;
  if (!Prim::sync_or(given_up)) return;
  const Pack nan = {{~0u, ~0u, ~0u, ~0u}};
  Pack* const packs = reinterpret_cast<Pack*>(work.memory);
  const int64_t count = work.bytes / static_cast<int64_t>(sizeof(Pack)), stride = int64_t{Prim::blocks()} * Prim::threads();
  for (int64_t i = int64_t{Prim::block()} * Prim::threads() + Prim::thread(); i < count; i += stride) {
    Prim::store(packs + i, nan);
  }
}

}  // namespace ringdp::gpu
