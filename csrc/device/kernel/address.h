// Where a step's buffers lie, for one block of one rank.
#pragma once
#include "device/kernel/element.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {

__device__ inline char* buffer_of(const WorkHead& work, plan::DeviceSpace space, int rank) {
  switch (space) {
    case plan::DeviceSpace::kInput:
      return work.input[rank];
    case plan::DeviceSpace::kOutput:
      return work.output[rank];
    default:
      return work.stage[rank];
  }
}

// The pack at which `ref` starts, with `rank` in place of kOwnRank and kAllRanks.
template <class T>
__device__ Pack* packs_at(const WorkHead& work, const plan::DeviceRef& ref, int rank) {
  const int64_t bytes = ref.offset * static_cast<int64_t>(ref.wide ? sizeof(Wide<T>) : sizeof(T));
  void* const start = buffer_of(work, ref.space, ref.rank >= 0 ? ref.rank : rank) + bytes;
  return static_cast<Pack*>(start);
}

// What `writer` has pushed to `reader` in `epoch`: 8 bytes for every 4 of the tensor.
__device__ inline char* pushed_part(const WorkHead& work, int reader, int writer, uint64_t epoch) {
  const int64_t part = static_cast<int64_t>(epoch & 1) * work.world + writer;
  return work.pushed[reader] + part * work.pushed_bytes;
}

}  // namespace ringdp::gpu
