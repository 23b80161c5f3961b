// The kernels on the compiler's baseline: SSE2 on x86-64, NEON on aarch64. Steps are with and without fused
// multiply-add.
#include "kernels/baseline.h"
#include "kernels/checksum_loop.h"
#include "kernels/codec_loops.h"
#include "kernels/dispatch.h"
#include "kernels/fold_loops.h"
#include "kernels/step_loops.h"

namespace ringdp::kernels {
namespace {

using Values = Floats<Baseline>::Values;

struct Unfused : Baseline {
  static Values fma(Values a, Values b, Values c) { return a * b + c; }
  static Values root(Values v) {
    for (int lane = 0; lane < Floats<Baseline>::kLanes; ++lane) v[lane] = __builtin_sqrtf(v[lane]);
    return v;
  }
};

struct Fused : Unfused {
  static Values fma(Values a, Values b, Values c) {
    for (int lane = 0; lane < Floats<Baseline>::kLanes; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
  }
};

constexpr StepKernels kUnfused = StepLoops<Unfused>::kernels(false);
constexpr StepKernels kFused = StepLoops<Fused>::kernels(true);

}  // namespace

Kernel pick_scalar_kernel(const KernelKey& key) { return Picker<Baseline>::pick(key); }
Kernel pick_scalar_tree_kernel(const KernelKey& key) { return TreePicker<Baseline>::pick(key); }

const Codec& scalar_codec() { return CodecLoops<Baseline>::kCodec; }

const StepKernels& scalar_step_kernels() { return kUnfused; }
const StepKernels& scalar_fma_step_kernels() { return kFused; }

uint64_t scalar_unordered_checksum(const void* elements, int64_t count, int64_t element_bytes) {
  return sum_by_size(elements, count, element_bytes);
}

}  // namespace ringdp::kernels
