// Steps on the compiler's baseline (SSE2 on x86-64, NEON on aarch64), with and without fused multiply-add.
#include "kernels/isa_baseline.h"
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

const StepKernels& scalar_step_kernels() { return kUnfused; }
const StepKernels& scalar_fma_step_kernels() { return kFused; }

}  // namespace ringdp::kernels
