// The verbs that touch tensors, over a block's share of a step: kSum, kAdd, kCopy.
//
// A thread loads packs of all ranks before it adds the first, and enough of them to hide the latency of remote loads.
// Stores to all ranks start with the next rank, so that not all ranks write to rank 0 at once.
#pragma once
#include "device/kernel/address.h"

namespace ringdp::gpu {

constexpr int kPacksInFlight = 8;  // per thread

// The share of block `Prim::block()` of `blocks`.
template <class Prim, class T>
__device__ PackRange own_share(const plan::DeviceStep& step, int blocks) {
  return share_of_block(step.count / kLanes<T>, blocks, Prim::block());
}

template <class Prim, class T, int kRanks>
struct Targets {
  Pack* to[kRanks];
  int count;

  __device__ Targets(const WorkHead& work, const plan::DeviceRef& ref)
      : to{}, count(ref.rank == plan::kAllRanks ? kRanks : 1) {
    for (int k = 0; k < kRanks; ++k) {
      to[k] = packs_at<T>(work, ref, count == 1 ? work.rank : (work.rank + 1 + k) % kRanks);
    }
  }
  __device__ void store(int64_t i, Pack pack) const {
    for (int k = 0; k < kRanks; ++k) {
      if (k < count) Prim::store(to[k] + i, pack);
    }
  }
};

template <class Prim, class T, class Op, int kRanks>
__device__ void sum_step(const WorkHead& work, const plan::DeviceStep& step) {
  constexpr int kBatch = kRanks < kPacksInFlight ? kPacksInFlight / kRanks : 1;
  const Targets<Prim, T, kRanks> targets(work, step.to);
  const Pack* from[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) from[r] = packs_at<T>(work, step.from, r);
  const PackRange share = own_share<Prim, T>(step, work.blocks);
  const int64_t stride = Prim::threads();
  for (int64_t i = share.begin + Prim::thread(); i < share.end; i += stride * kBatch) {
    Pack packs[kBatch][kRanks] = {};
    for (int b = 0; b < kBatch; ++b) {
      for (int r = 0; r < kRanks; ++r) {
        if (i + b * stride < share.end) packs[b][r] = Prim::load(from[r] + i + b * stride);
      }
    }
    for (int b = 0; b < kBatch; ++b) {
      if (i + b * stride >= share.end) break;
      Values<T> sum = unpack<Prim, T>(packs[b][0]);
      for (int r = 1; r < kRanks; ++r) fold_into<Op, T>(sum, unpack<Prim, T>(packs[b][r]));
      finish<T>(sum, work.divisor);
      targets.store(i + b * stride, pack_rounded<Prim, T>(sum));
    }
  }
}

template <class Prim, class T, int kRanks>
__device__ void copy_step(const WorkHead& work, const plan::DeviceStep& step) {
  const Targets<Prim, T, kRanks> targets(work, step.to);
  const Pack* const from = packs_at<T>(work, step.from, work.rank);
  const PackRange share = own_share<Prim, T>(step, work.blocks);
  const int64_t stride = Prim::threads();
  for (int64_t i = share.begin + Prim::thread(); i < share.end; i += stride * kPacksInFlight) {
    Pack packs[kPacksInFlight] = {};
    for (int b = 0; b < kPacksInFlight; ++b) {
      if (i + b * stride < share.end) packs[b] = Prim::load(from + i + b * stride);
    }
    for (int b = 0; b < kPacksInFlight; ++b) {
      if (i + b * stride < share.end) targets.store(i + b * stride, packs[b]);
    }
  }
}

// The raw or wide elements that belong to raw pack `i`, as they lie in memory.
template <class T, bool kWide>
struct PartPacks {
  static constexpr int kCount = kWide ? kWidePacks<T> : 1;
  Pack of[kCount];

  template <class Prim>
  __device__ void load(const Pack* from, int64_t i) {
    for (int k = 0; k < kCount; ++k) of[k] = Prim::load(from + i * kCount + k);
  }
  template <class Prim>
  __device__ Values<T> values() const {
    if constexpr (kCount == 1) {
      return unpack<Prim, T>(of[0]);
    } else {
      return bits_as<Values<T>>(*this);
    }
  }
};

template <class Prim, class T>
__device__ void store_wide(Pack* to, int64_t i, const Values<T>& values) {
  if constexpr (kWidePacks<T> == 1) {
    Prim::store(to + i, pack_rounded<Prim, T>(values));
  } else {
    struct Packs {
      Pack of[kWidePacks<T>];
    };
    const auto packs = bits_as<Packs>(values);
    for (int k = 0; k < kWidePacks<T>; ++k) Prim::store(to + i * kWidePacks<T> + k, packs.of[k]);
  }
}

template <class Prim, class T, class Op, bool kFromWide>
__device__ void add_step(const WorkHead& work, const plan::DeviceStep& step) {
  const Pack* const from = packs_at<T>(work, step.from, work.rank);
  const Pack* const addend = packs_at<T>(work, step.addend, work.rank);
  Pack* const to = packs_at<T>(work, step.to, work.rank);
  using Part = PartPacks<T, kFromWide>;
  constexpr int kBatch = kPacksInFlight / (1 + Part::kCount);
  const PackRange share = own_share<Prim, T>(step, work.blocks);
  const int64_t stride = Prim::threads();
  for (int64_t i = share.begin + Prim::thread(); i < share.end; i += stride * kBatch) {
    Part parts[kBatch] = {};
    Pack own[kBatch] = {};
    for (int b = 0; b < kBatch; ++b) {
      if (i + b * stride < share.end) {
        parts[b].template load<Prim>(from, i + b * stride);
        own[b] = Prim::load(addend + i + b * stride);
      }
    }
    for (int b = 0; b < kBatch; ++b) {
      if (i + b * stride >= share.end) break;
      Values<T> sum = parts[b].template values<Prim>();
      fold_into<Op, T>(sum, unpack<Prim, T>(own[b]));
      finish<T>(sum, step.finish ? work.divisor : 0);
      if (step.finish) {
        Prim::store(to + i + b * stride, pack_rounded<Prim, T>(sum));
      } else {
        store_wide<Prim, T>(to, i + b * stride, sum);
      }
    }
  }
}

}  // namespace ringdp::gpu
