// What one thread block runs: a rank's steps in order, on its share of every one.
//
// Prim, the primitives of a place to run, has static members:
//   thread(), threads(), block()           this thread's number and how many the block has; this block's number
//   sync(), sync_or(flag)                  the block's barrier; the same, true for all if it was for one
//   load_acquire(p), store_release(p, v)   of uint32_t and uint64_t, for all the system
//   load(p), store(p, pack)                of a Pack, relaxed, for all the system: never from a stale cache
//   load_words(p), store_words(p, words)   the same of MarkedWords, each word of 8 bytes as a whole
//   compare_and_swap(p, old, new)          of uint32_t, for all the system; what was there
//   add_one(p)                             of uint32_t, acquiring and releasing, for the device; what was there
//   clock_ns()                             of one clock for all threads of a block
//   half_to_float(bits), float_to_half(f)  the latter to nearest even
// A post is a sync and then one thread's release: what the block did before is carried along, as it is by a barrier and
// a release in the memory models of C++ and PTX. An await is one thread's acquire and then a sync.
#pragma once
#include "device/kernel/push.h"

namespace ringdp::gpu {

// The step does nothing but move or add. False: this thread has aborted waiting for pushed packs.
template <class Prim, class T, class Op, int kRanks>
__device__ bool run_data_step(const Work& work, const plan::DeviceStep& step, int index, uint64_t epoch) {
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

// How many steps from `first` on have its verb: flags of several peers are posted, and awaited, by as many threads.
__device__ inline int run_length(const Work& work, int first) {
  int end = first + 1;
  while (end < work.steps && work.step[end].verb == work.step[first].verb) ++end;
  return end - first;
}

template <class Prim>
__device__ void post_flags(const Work& work, int first, int count, uint64_t epoch) {
  Prim::sync();
  for (int s = first + Prim::thread(); s < first + count; s += Prim::threads()) {
    const plan::DeviceStep& step = work.step[s];
    Flag& flag = work.flags[step.peer]->of[step.slot][Prim::block()][work.rank];
    Prim::store_release(&flag.value, epoch * kValuesPerEpoch + step.value);
  }
}

// False, for all threads alike: aborted.
template <class Prim>
__device__ bool await_flags(const Work& work, int first, int count, uint64_t epoch) {
  bool came = true;
  for (int s = first + Prim::thread(); s < first + count && came; s += Prim::threads()) {
    const plan::DeviceStep& step = work.step[s];
    const Flag& flag = work.flags[work.rank]->of[step.slot][Prim::block()][step.peer];
    const Wanted wanted = {s, step.peer, step.slot, epoch, epoch * kValuesPerEpoch + step.value};
    came = wait_until<Prim>(work, wanted, FlagPoll<Prim>{&flag.value, wanted.value});
  }
  return !Prim::sync_or(!came);
}

// False, for all threads alike: aborted. Moves `*next` beyond what it has run.
template <class Prim, class T, class Op, int kRanks>
__device__ bool run_next(const Work& work, int* next, uint64_t epoch) {
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

// The launch is over for this block; the last one counts it, also after a failure.
template <class Prim>
__device__ void finish_epoch(const Work& work, uint64_t epoch) {
  Prim::sync();
  if (Prim::thread() != 0) return;
  if (Prim::add_one(&work.epoch->finished_blocks) + 1 < static_cast<uint32_t>(work.blocks)) return;
  Prim::store_release(&work.epoch->finished_blocks, 0u);
  Prim::store_release(&work.epoch->launches, epoch);
}

// False, for all threads alike: the group is over. Asked where somebody else's memory may be touched by then: in a
// replay, whose ranks may have gone, and on callers' own memory, where results are that nobody copies, by a stream
// whose waits were released or by ranks that have not called the same.
template <class Prim>
__device__ bool may_begin(const Work& work) {
  if (!work.captured && work.aborts[work.rank] == nullptr) return true;
  return !Prim::sync_or(Prim::thread() == 0 && Prim::load_acquire(work.abort) != 0);
}

// A caller does as it likes with memory that was aborted, and so does what comes next on the stream with a window,
// while a peer may still read it: so everybody's results are void before it can.
template <class Prim>
__device__ void end_for_all(const Work& work) {
  for (int r = Prim::thread(); r < work.world; r += Prim::threads()) {
    if (work.aborts[r] != nullptr) Prim::store_release(work.aborts[r], 1u);
  }
}

// kRanks: work.world. T: the storage type of the elements. Op: of element.h. After a wait that was aborted nothing
// more is touched: tensors and arena are then torn, and the group is over.
template <class Prim, class T, class Op, int kRanks>
__device__ void run_steps(const Work& work) {
  const uint64_t epoch = Prim::load_acquire(&work.epoch->launches) + 1;
  const bool begins = may_begin<Prim>(work);
  bool alive = begins;
  for (int next = 0; next < work.steps && alive;) alive = run_next<Prim, T, Op, kRanks>(work, &next, epoch);
  if (!alive && (begins || !work.captured)) end_for_all<Prim>(work);  // a replay may come long after its group
  finish_epoch<Prim>(work, epoch);
}

}  // namespace ringdp::gpu
