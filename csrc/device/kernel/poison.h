// Overwrites the results of an aborted collective with NaN, so that no wrong number is left behind; else it may copy
// them to their place.
//
// Runs in the stream's order after, or as, the copy of a result to the caller's tensor: peers that have not aborted yet
// may still write into this rank's window. Into tensors in a buffer, too, but only what is the sum
// (device/torch/queued_call.h). All bits one are a NaN of every floating type but the two 8-bit ones without a negative
// zero (e4m3fnuz, e5m2fnuz).
#pragma once
#include "device/kernel/element.h"

namespace ringdp::gpu {

// Plain data: the argument of a kernel.
struct PoisonWork {
  char* memory;  // of any alignment
  int64_t bytes;
  const uint32_t* abort;       // host-mapped: not 0: the memory becomes NaN
  const char* from = nullptr;  // what it becomes otherwise: as far past a pack as `memory`; null: it stays
};

// One thread of a block looks: the word lies behind PCIe, and threads that read it do so one after another, in about a
// microsecond each on an H100.
template <class Prim>
__device__ void run_poison(const PoisonWork& work) {
  const bool aborts = Prim::sync_or(Prim::thread() == 0 && Prim::load_acquire(work.abort) != 0);
  if (!aborts && work.from == nullptr) return;
  constexpr int64_t kPack = sizeof(Pack);
  const int64_t past = reinterpret_cast<int64_t>(work.memory) % kPack;
  const int64_t to_first = (kPack - past) % kPack;
  const int64_t head = to_first < work.bytes ? to_first : work.bytes;
  const int64_t packs = (work.bytes - head) / kPack, tail = head + packs * kPack;
  const int64_t self = int64_t{Prim::block()} * Prim::threads() + Prim::thread();
  const int64_t stride = int64_t{Prim::blocks()} * Prim::threads();
  const Pack nan = {{~0u, ~0u, ~0u, ~0u}};
  Pack* const to = reinterpret_cast<Pack*>(work.memory + head);
  const Pack* const from = aborts ? nullptr : reinterpret_cast<const Pack*>(work.from + head);
  for (int64_t i = self; i < packs; i += stride) Prim::store(to + i, aborts ? nan : Prim::load(from + i));
  for (int64_t i = self; i < head; i += stride) work.memory[i] = aborts ? static_cast<char>(~0) : work.from[i];
  for (int64_t i = tail + self; i < work.bytes; i += stride) {
    work.memory[i] = aborts ? static_cast<char>(~0) : work.from[i];
  }
}

}  // namespace ringdp::gpu
