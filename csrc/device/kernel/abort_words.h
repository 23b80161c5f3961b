// How ranks that share no memory tell each other that they have aborted: by words that go with their messages.
#pragma once
#include "device/kernel/pack.h"

namespace ringdp::gpu {

// Plain data: the argument of a kernel of one block.
struct AbortWords {
  uint32_t* abort;       // host-mapped; not 0: this rank has aborted
  Pack* own;             // goes to the peers; not 0: this rank has aborted
  const Pack* received;  // one of each peer, which may still be 0; not 0: that peer has aborted
  int32_t count;         // of received
};

// This rank aborts if a peer has, and then says so itself. No word is ever cleared: an abort is final.
template <class Prim>
__device__ void run_abort_words(const AbortWords& words) {
  bool aborts = Prim::thread() == 0 && Prim::load_acquire(words.abort) != 0;
  for (int peer = Prim::thread(); peer < words.count; peer += Prim::threads()) {
    aborts |= Prim::load_acquire(words.received[peer].words) != 0;
  }
  aborts = Prim::sync_or(aborts);
  if (!aborts || Prim::thread() != 0) return;
  Prim::store_release(words.abort, 1u);
  Prim::store(words.own, {{~0u, ~0u, ~0u, ~0u}});
}

}  // namespace ringdp::gpu
