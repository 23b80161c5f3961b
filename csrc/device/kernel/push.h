// Small tensors are pushed together with flags, as in NCCL's LL protocol: an 8-byte word holds 4 bytes of data and a
// mark derived from the epoch.
//
// An 8-byte store is atomic (a 16-byte vector is not, in the memory model), so data has arrived when its mark has,
// without a fence. There are two buffers, chosen by the parity of the epoch: a writer that is one epoch ahead writes to
// the one that is not being read. It cannot be two ahead, because its last launch has waited for all ranks.
#pragma once
#include "device/kernel/data_steps.h"
#include "device/kernel/wait.h"

namespace ringdp::gpu {

// Two marked words. A pack takes two of these.
struct alignas(16) MarkedWords {
  uint64_t of[2];
};

// Never 0, which fresh memory holds. A mark repeats in the same buffer only after 2^33 epochs.
__device__ inline uint32_t mark_of(uint64_t epoch) { return static_cast<uint32_t>(epoch % 0xffffffffu) + 1; }

__device__ inline uint64_t marked(uint32_t word, uint32_t mark) { return uint64_t{mark} << 32 | word; }
__device__ inline uint32_t mark_in(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

template <class Prim, class T, int kRanks>
__device__ void push_step(const WorkHead& work, const plan::DeviceStep& step, uint64_t epoch) {
  const uint32_t mark = mark_of(epoch);
  const Pack* const from = packs_at<T>(work, step.from, work.rank);
  MarkedWords* to[kRanks] = {};
  for (int k = 1; k < kRanks; ++k) {
    void* const part = pushed_part(work, (work.rank + k) % kRanks, work.rank, epoch);
    to[k] = static_cast<MarkedWords*>(part);
  }
  const PackRange share = own_share<Prim, T>(step, work.blocks);
  for (int64_t i = share.begin + Prim::thread(); i < share.end; i += Prim::threads()) {
    const Pack pack = Prim::load(from + i);
    const MarkedWords low = {{marked(pack.words[0], mark), marked(pack.words[1], mark)}};
    const MarkedWords high = {{marked(pack.words[2], mark), marked(pack.words[3], mark)}};
    for (int k = 1; k < kRanks; ++k) {
      Prim::store_words(to[k] + 2 * i, low);
      Prim::store_words(to[k] + 2 * i + 1, high);
    }
  }
}

// Waits for one pushed pack.
template <class Prim>
struct PushedPoll {
  const MarkedWords* from;
  uint32_t mark;
  MarkedWords *low, *high;

  __device__ bool has_come() const {
    return mark_in(low->of[0]) == mark && mark_in(low->of[1]) == mark && mark_in(high->of[0]) == mark &&
           mark_in(high->of[1]) == mark;
  }
  __device__ void load() const {
    *low = Prim::load_words(from);
    *high = Prim::load_words(from + 1);
  }
  __device__ bool operator()(uint64_t* seen) const {
    if (has_come()) return true;
    load();
    *seen = mark_in(high->of[1]);
    return has_come();
  }
};

__device__ inline Pack without_marks(const MarkedWords& low, const MarkedWords& high) {
  return {{static_cast<uint32_t>(low.of[0]), static_cast<uint32_t>(low.of[1]), static_cast<uint32_t>(high.of[0]),
           static_cast<uint32_t>(high.of[1])}};
}

// False: this thread has aborted.
template <class Prim, class T, class Op, int kRanks>
__device__ bool sum_pushed_step(const WorkHead& work, const plan::DeviceStep& step, int index, uint64_t epoch) {
  const uint32_t mark = mark_of(epoch);
  const Pack* const own = packs_at<T>(work, step.from, work.rank);
  Pack* const to = packs_at<T>(work, step.to, work.rank);
  const PackRange share = own_share<Prim, T>(step, work.blocks);
  for (int64_t i = share.begin + Prim::thread(); i < share.end; i += Prim::threads()) {
    MarkedWords low[kRanks] = {}, high[kRanks] = {};
    PushedPoll<Prim> polls[kRanks] = {};
    for (int r = 0; r < kRanks; ++r) {
      void* const part = pushed_part(work, work.rank, r, epoch);
      polls[r] = {static_cast<const MarkedWords*>(part) + 2 * i, mark, &low[r], &high[r]};
      if (r != work.rank) polls[r].load();
    }
    const Pack mine = Prim::load(own + i);
    Values<T> sum{};
    for (int r = 0; r < kRanks; ++r) {
      const Wanted wanted = {index, r, kPushedData, epoch, mark};
      if (r != work.rank && !wait_until<Prim>(work, wanted, polls[r])) return false;
      const Values<T> next = unpack<Prim, T>(r == work.rank ? mine : without_marks(low[r], high[r]));
      if (r == 0) {
        sum = next;
      } else {
        fold_into<Op, T>(sum, next);
      }
    }
    finish<T>(sum, work.divisor);
    Prim::store(to + i, pack_rounded<Prim, T>(sum));
  }
  return true;
}

}  // namespace ringdp::gpu
