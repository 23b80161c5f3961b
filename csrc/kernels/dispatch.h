// The kernels of one instruction set, and which sets this binary holds and this machine runs.
//
// fold(), fold_tree(), encode(), decode(), sgd_step() and adam_step() check their arguments and cut the work into calls
// of kernels, each for one instruction set. All kernels of a set are compiled in one file, kernels_<set>.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "kernels/codes.h"
#include "kernels/fold.h"
#include "kernels/fold_tree.h"
#include "kernels/step.h"

namespace ringdp::kernels {

// --- fold ---
// A kernel folds 1..max_kernel_srcs(op) sources (kMaxToAll where it stores to all) in registers, over a multiple of
// kTile elements. It reads element i of every source before it writes element i of any destination, and never reads it
// again.

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

constexpr int64_t kMaxElementBytes = 8;  // of what a kernel folds

// Complex numbers as twice as many real ones, whose sums they are; other arguments as they are.
template <class Args>
Args in_reals(Args args) {
  if (args.dtype == DType::kC64 || args.dtype == DType::kC128) {
    args.dtype = args.dtype == DType::kC64 ? DType::kF32 : DType::kF64;
    args.count = checked_mul(args.count, 2);
  }
  return args;
}

// --- fold_tree ---
// Kernels of perfect trees of 2, 4, 8 or 16 sources, all raw (the type of the tensors) or all wide, into as many
// destinations as for fold: one, two or, without partial sums, as many as there are sources.

constexpr size_t kMaxTreeSrcs = 16;

Kernel pick_scalar_tree_kernel(const KernelKey& key);
Kernel pick_avx2_tree_kernel(const KernelKey& key);
Kernel pick_avx512_tree_kernel(const KernelKey& key);

// --- codec ---
// Every kernel works on one whole block, of kWireBlock elements if nothing else is said; none keeps a pointer.

struct Codec {
  void (*widen)(DType dtype, const std::byte* elements, float* block);
  void (*narrow)(DType dtype, const float* block, std::byte* elements);
  void (*encode)(WireType wire, const float* block, std::byte* encoded);
  void (*decode)(WireType wire, const std::byte* encoded, float* block);
  void (*encode_code)(Code code, const float* block, std::byte* encoded);  // of code_block() elements
  void (*decode_code)(Code code, const std::byte* encoded, float* block);  // not NaN
};

const Codec& scalar_codec();
const Codec& avx2_codec();
const Codec& avx512_codec();

// `encode` and `decode` on chosen kernels: what the tests of one instruction set call.
void encode_with(const Codec& codec, WireType wire, DType dtype, const void* src, void* encoded, int64_t count);
void decode_with(const Codec& codec, WireType wire, DType dtype, const void* encoded, void* dst, int64_t count);
void encode_with(const Codec& codec, Code code, const float* values, float* residuals, int64_t count,
                 std::byte* encoded, int64_t blocks);
void decode_with(const Codec& codec, Code code, const std::byte* encoded, int64_t blocks, float* values);

// --- optimizer steps ---
// A kernel works on a multiple of kStepLanes elements and keeps no pointer.

constexpr int64_t kStepLanes = 16;  // a whole number of vectors of every instruction set

struct StepKernels {
  bool fma;
  void (*sgd)(const SgdScalars&, const StepArrays&);
  void (*moments)(const AdamScalars&, const StepArrays&);                     // Adam up to the root
  void (*update)(const AdamScalars&, const StepArrays&, const float* roots);  // and from the root on
  void (*adam)(const AdamScalars&, const StepArrays&);                        // both, with IEEE roots
};

const StepKernels& scalar_step_kernels();
const StepKernels& scalar_fma_step_kernels();  // where the baseline has the instruction (aarch64); elsewhere slow
const StepKernels& avx2_step_kernels();
const StepKernels& avx512_step_kernels();

// The steps on chosen kernels: what the tests of one instruction set call. `root` as in StepMath.
void sgd_step_with(const StepKernels& kernels, const SgdSettings& settings, const StepArrays& arrays, bool first);
void adam_step_with(const StepKernels& kernels, const AdamSettings& settings, const StepArrays& arrays, double number,
                    void (*root)(const float*, float*, int64_t));

// --- copies and checksums ---

using CopyKernel = void (*)(const void* src, void* dst, int64_t bytes);
void avx2_copy_nontemporal(const void* src, void* dst, int64_t bytes);

// unordered_checksum() without its check of sizes.
using UnorderedChecksum = uint64_t (*)(const void* elements, int64_t count, int64_t element_bytes);
uint64_t scalar_unordered_checksum(const void* elements, int64_t count, int64_t element_bytes);
uint64_t avx2_unordered_checksum(const void* elements, int64_t count, int64_t element_bytes);

// --- all of them ---

struct InstructionSet {
  const char* name;  // "avx512", "avx2", "neon" or "scalar"
  KernelPicker pick, pick_tree;
  const Codec& codec;
  CopyKernel copy_nontemporal;
  const StepKernels& step;
  UnorderedChecksum unordered_checksum;
};

// Best first, never empty; the last one is the compiler's baseline. Detected once; thread-safe.
const std::vector<InstructionSet>& supported_instruction_sets();

// `fold_tree` on chosen kernels: what the tests of one instruction set call.
void fold_tree_with(const InstructionSet& set, const TreeArgs& args);

}  // namespace ringdp::kernels
