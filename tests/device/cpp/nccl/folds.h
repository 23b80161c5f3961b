// Folds over memory of this process: their work run by one host thread, and what it must give.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "device/cpp/kernel/host_run.h"
#include "device/nccl/fold_work.h"
#include "plan/oracle.h"

namespace ringdp::gpu::testing {

constexpr int64_t kFoldElements = 64;
constexpr size_t kSlotBytes = kFoldElements * 8;

// Slots of one allocation: the sources, the spare one, the result.
struct FoldMemory {
  explicit FoldMemory(int sources) : packs(static_cast<size_t>(sources + 2) * kSlotBytes / sizeof(Pack)) {}
  char* slot(int index) { return reinterpret_cast<char*>(packs.data()) + static_cast<size_t>(index) * kSlotBytes; }
  std::vector<Pack> packs;
};

inline Fold fold_in(FoldMemory& memory, int sources, DType dtype, bool finish) {
  Fold fold;
  fold.dtype = dtype;
  for (int k = 0; k < sources; ++k) fold.sources.push_back({memory.slot(k), false});
  fold.spare = memory.slot(sources);
  fold.result = {memory.slot(sources + 1), !finish};
  fold.count = kFoldElements;
  fold.finish = finish;
  return fold;
}

inline Fold fold_of(int sources, DType dtype, bool finish) {
  static FoldMemory memory(400);
  return fold_in(memory, sources, dtype, finish);
}

inline plan::testing::Bytes source(int k, DType dtype) {
  return plan::testing::random_tensor(kFoldElements, dtype, static_cast<uint64_t>(k) + 1);
}

inline RunKernel kernel_for(DType dtype, int world) {
  if (dtype == DType::kF64) return kernel_of<double, Sum>(world);
  if (dtype == DType::kI32) return kernel_of<int32_t, Sum>(world);
  return sum_kernel(dtype, world);
}

inline void run_by_one_thread(Work& work, DType dtype) {
  Epoch epoch = {};
  uint32_t abort = 0;
  Expired expired = {};
  work.blocks = 1;
  work.deadline_ns = 1;
  work.epoch = &epoch;
  work.abort = &abort;
  work.expired = &expired;
  HostBlock block(1);
  HostThread thread;
  thread.its_block = &block;
  thread.hostility = {false, true, 0};
  this_thread = &thread;
  kernel_for(dtype, work.world)(work);
  this_thread = nullptr;
}

// What lies in the result. `wide_first`: the first source is a partial sum.
inline plan::testing::Bytes folded(int sources, DType dtype, bool wide_first) {
  FoldMemory memory(sources);
  for (int k = 0; k < sources; ++k) {
    const plan::testing::Bytes bytes = source(k, k == 0 && wide_first ? wide_of(dtype) : dtype);
    std::memcpy(memory.slot(k), bytes.data(), bytes.size());
  }
  Fold fold = fold_in(memory, sources, dtype, true);
  fold.sources[0].wide = wide_first;
  Work work = work_of(fold);
  run_by_one_thread(work, dtype);
  const auto* const result = reinterpret_cast<const std::byte*>(memory.slot(sources + 1));
  return {result, result + kFoldElements * size_of(dtype)};
}

inline plan::testing::Bytes serially(int sources, DType dtype, bool wide_first) {
  const DType wide = wide_of(dtype);
  plan::testing::Bytes result(static_cast<size_t>(kFoldElements * size_of(dtype)));
  for (int64_t i = 0; i < kFoldElements; ++i) {
    const DType first = wide_first ? wide : dtype;
    double sum = plan::testing::load(source(0, first).data(), i, first);
    for (int k = 1; k < sources; ++k) {
      sum = plan::testing::combine(sum, plan::testing::load(source(k, dtype).data(), i, dtype), wide, ReduceOp::kSum);
    }
    plan::testing::store(result.data(), i, dtype, sum);
  }
  return result;
}

}  // namespace ringdp::gpu::testing
