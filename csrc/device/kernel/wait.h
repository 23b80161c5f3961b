// Waits that never hang: they poll, and every kPollsPerLook polls check the clock and whether the group has failed.
//
// At the deadline, which counts from the first check, the first thread of this rank fills the Expired record; it and
// all later ones set the abort word. A thread that aborts returns false and goes on to its block's next sync, where all
// threads exit together.
#pragma once
#include "device/kernel/look.h"

namespace ringdp::gpu {

constexpr int kPollsPerLook = 1024;

// What a thread waits for.
struct Wanted {
  int step, peer;
  uint32_t slot;
  uint64_t epoch, value;
};

template <class Prim>
__device__ void expire(const WorkHead& work, const Wanted& wanted, uint64_t seen) {
  Expired* const record = work.expired;
  if (Prim::compare_and_swap(&record->set, 0u, 1u) == 0u) {
    record->rank = work.rank;
    record->block = Prim::block();
    record->step = wanted.step;
    record->peer = wanted.peer;
    record->slot = wanted.slot;
    record->epoch = wanted.epoch;
    record->wanted = wanted.value;
    record->seen = seen;
    record->launch = work.stream_epoch;
    Prim::store_release(&record->set, 2u);
  }
  Prim::store_release(work.abort, 1u);
  Prim::store_release(&work.epoch->aborted, 1u);
}

// Waits until poll(&seen) is true. False: aborted.
template <class Prim, class Poll>
__device__ bool wait_until(const WorkHead& work, const Wanted& wanted, Poll poll) {
  uint64_t started = 0, seen = 0;
  for (int polls = 0; !poll(&seen);) {
    if (++polls < kPollsPerLook) continue;
    polls = 0;
    const uint64_t now = Prim::clock_ns();
    if (is_ended<Prim>(*work.epoch, work.abort, now)) return false;
    if (started == 0) started = now;
    if (now - started > work.deadline_ns) {
      expire<Prim>(work, wanted, seen);
      return false;
    }
  }
  return true;
}

template <class Prim>
struct FlagPoll {
  const uint64_t* flag;
  uint64_t wanted;

  __device__ bool operator()(uint64_t* seen) const {
    *seen = Prim::load_acquire(flag);
    return *seen >= wanted;
  }
};

}  // namespace ringdp::gpu
