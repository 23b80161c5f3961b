// Steps on AVX-512 (F). Only called where dispatch.cc found it.
#include "kernels/isa_avx512.h"
#include "kernels/step_loops.h"

namespace ringdp::kernels {
namespace {

struct Fused : Avx512 {
  using Values = Vector<float, 16>;
  static Values fma(Values a, Values b, Values c) { return _mm512_fmadd_ps(a, b, c); }
  static Values root(Values v) { return _mm512_maskz_sqrt_ps(kAll, v); }
};

constexpr StepKernels kKernels = StepLoops<Fused>::kernels(true);

}  // namespace

const StepKernels& avx512_step_kernels() { return kKernels; }

}  // namespace ringdp::kernels
