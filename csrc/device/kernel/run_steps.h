// What one thread block runs: its share of each of a rank's steps, in order.
//
// Prim, the primitives of a device or of host threads, has static members:
//   thread(), threads(), block()           index of this thread in its block, threads per block, index of this block
//   sync(), sync_or(flag)                  barrier of the block; the same, returns whether any thread's flag is true
//   load_acquire(p), store_release(p, v)   uint32_t and uint64_t, system scope
//   load(p), store(p, pack)                a Pack, relaxed, system scope: never from a stale cache
//   load_words(p), store_words(p, words)   MarkedWords, likewise; each 8-byte word is atomic
//   compare_and_swap(p, old, new)          uint32_t, system scope; returns the previous value
//   add_one(p)                             uint32_t, acquire-release, device scope; returns the previous value
//   clock_ns()                             one clock for all threads of a block
//   half_to_float(bits), float_to_half(f)  rounds to nearest even
// A post is a sync and then one thread's release, which publishes all earlier accesses of the block (cumulativity, in
// the memory models of C++ and PTX). An await is one thread's acquire and then a sync.
#pragma once
#include "device/kernel/look.h"
#include "device/kernel/push.h"

namespace ringdp::gpu {

// A step that moves or sums. False: this thread aborted while it waited for pushed packs.
template <class Prim, class T, class Op, int kRanks>
__device__ bool run_data_step(const WorkHead& work, const plan::DeviceStep& step, int index, uint64_t epoch) {
  switch (step.verb) {
    case plan::DeviceVerb::kSum:
      sum_step<Prim, T, Op, kRanks>(work, step);
      break;
    case plan::DeviceVerb::kAdd:
      if (step.from.wide) {
        add_step<Prim, T, Op, true>(work, step);
      } else {
        add_step<Prim, T, Op, false>(work, step);
      }
      break;
    case plan::DeviceVerb::kCopy:
      copy_step<Prim, T, kRanks>(work, step);
      break;
    case plan::DeviceVerb::kPush:
      push_step<Prim, T, kRanks>(work, step, epoch);
      break;
    case plan::DeviceVerb::kSumPushed:
      return sum_pushed_step<Prim, T, Op, kRanks>(work, step, index, epoch);
    default:
      break;
  }
  return true;
}

// How many steps from `first` on have the same verb: one thread per flag posts or awaits the flags of several peers.
template <class SomeWork>
__device__ int run_length(const SomeWork& work, int first) {
  int end = first + 1;
  while (end < work.steps && work.step[end].verb == work.step[first].verb) ++end;
  return end - first;
}

template <class Prim, class SomeWork>
__device__ void post_flags(const SomeWork& work, int first, int count, uint64_t epoch) {
  Prim::sync();
  for (int s = first + Prim::thread(); s < first + count; s += Prim::threads()) {
    const plan::DeviceStep& step = work.step[s];
    Flag& flag = work.flags[step.peer]->of[step.slot][Prim::block()][work.rank];
    Prim::store_release(&flag.value, epoch * kValuesPerEpoch + step.value);
  }
}

// False on all threads: aborted.
template <class Prim, class SomeWork>
__device__ bool await_flags(const SomeWork& work, int first, int count, uint64_t epoch) {
  bool came = true;
  for (int s = first + Prim::thread(); s < first + count && came; s += Prim::threads()) {
    const plan::DeviceStep& step = work.step[s];
    const Flag& flag = work.flags[work.rank]->of[step.slot][Prim::block()][step.peer];
    const Wanted wanted = {s, step.peer, step.slot, epoch, epoch * kValuesPerEpoch + step.value};
    came = wait_until<Prim>(work, wanted, FlagPoll<Prim>{&flag.value, wanted.value});
  }
  return !Prim::sync_or(!came);
}

// False on all threads: aborted. Advances `*next` past the steps that it has run.
template <class Prim, class T, class Op, int kRanks, class SomeWork>
__device__ bool run_next(const SomeWork& work, int* next, uint64_t epoch) {
  const int first = *next;
  const plan::DeviceStep& step = work.step[first];
  const bool is_flag = step.verb == plan::DeviceVerb::kPost || step.verb == plan::DeviceVerb::kAwait;
  const int count = is_flag ? run_length(work, first) : 1;
  *next += count;
  if (step.verb == plan::DeviceVerb::kPost) {
    post_flags<Prim>(work, first, count, epoch);
    return true;
  }
  if (step.verb == plan::DeviceVerb::kAwait) return await_flags<Prim>(work, first, count, epoch);
  const bool done = run_data_step<Prim, T, Op, kRanks>(work, step, first, epoch);
  return step.verb == plan::DeviceVerb::kSumPushed ? !Prim::sync_or(!done) : true;
}

// Ends the launch for this block; the last block increments the epoch, also after a failure.
template <class Prim>
__device__ void finish_epoch(const WorkHead& work, uint64_t epoch) {
  if (is_last<Prim>(*work.epoch, work.blocks)) Prim::store_release(&work.epoch->launches, epoch);
}

// False on all threads: the group has failed or ended. Checked in replays, whose peers may be gone, and in work on the
// callers' own memory, which a stream whose waits were released, or ranks that made another call, must not write.
template <class Prim>
__device__ bool may_begin(const WorkHead& work) {
  if (!work.captured && work.aborts[work.rank] == nullptr) return true;
  return !is_aborted<Prim>(*work.epoch, work.abort);
}

// After an abort the caller, or later work on the stream, may overwrite memory that a peer still reads: so the results
// of all ranks must be marked as aborted first.
template <class Prim>
__device__ void end_for_all(const WorkHead& work) {
  for (int r = Prim::thread(); r < work.world; r += Prim::threads()) {
    if (work.aborts[r] != nullptr) Prim::store_release(work.aborts[r], 1u);
  }
}

// kRanks: work.world. T: the storage type of the elements. Op: see element.h. SomeWork: Work or ShortWork. After an
// aborted wait nothing more is written; tensors and arena are left half written, and the group has failed.
template <class Prim, class T, class Op, int kRanks, class SomeWork>
__device__ void run_steps(const SomeWork& work) {
  const uint64_t epoch = Prim::load_acquire(&work.epoch->launches) + 1;
  const bool begins = may_begin<Prim>(work);
  bool alive = begins;
  for (int next = 0; next < work.steps && alive;) alive = run_next<Prim, T, Op, kRanks>(work, &next, epoch);
  if (!alive && (begins || !work.captured)) end_for_all<Prim>(work);  // a replay may run long after its group has ended
  finish_epoch<Prim>(work, epoch);
}

}  // namespace ringdp::gpu
