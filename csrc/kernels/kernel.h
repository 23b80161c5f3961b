// Contract between `fold` (splits the work) and the kernels (one instruction set each).
//
// A kernel folds 1..max_kernel_srcs(op) sources (kMaxToAll where it stores to all) in registers, over a multiple of kTile
// elements. It reads element i of every source before it writes element i of any destination, and never reads it again.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "kernels/fold.h"

namespace ringdp::kernels {

constexpr int64_t kTile = 64;          // elements; a whole number of vectors for every type and instruction set
constexpr int64_t kBlockBytes = 4096;  // of partial sums kept in the first-level cache

constexpr bool is_sum(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
}

// Sums are what training runs on; the rarer operations get fewer kernels and go through a block more often.
constexpr int kMaxKernelSrcs = 8;
constexpr int kMaxToAll = 16;
constexpr int max_kernel_srcs(ReduceOp op) { return is_sum(op) ? kMaxKernelSrcs : 2; }

// Sums without partial sums have kernels that store to as many destinations as there are sources: one pass over the
// tensors of all ranks. Other numbers of destinations are written by twos, or one by one.
constexpr bool stores_to_all(ReduceOp op, int n_srcs, int n_dsts, bool wide_src, bool wide_dst) {
  return is_sum(op) && n_srcs == n_dsts && n_srcs <= kMaxToAll && !wide_src && !wide_dst;
}
constexpr int kernel_dsts(ReduceOp op, int n_dsts) { return is_sum(op) && n_dsts >= 2 ? 2 : 1; }

using Kernel = void (*)(const void* const* srcs, void* const* dsts, int64_t count, double divisor);

struct KernelKey {
  DType dtype;
  ReduceOp op;
  bool wide_src, wide_dst, divide;
  int n_srcs, n_dsts;
};

using KernelPicker = Kernel (*)(const KernelKey&);

Kernel pick_scalar_kernel(const KernelKey& key);
Kernel pick_avx2_kernel(const KernelKey& key);
Kernel pick_avx512_kernel(const KernelKey& key);

// `fold` on chosen kernels: what the tests of one instruction set call.
void fold_with(KernelPicker pick, const FoldArgs& args);

}  // namespace ringdp::kernels
