// Steps on AVX2 with FMA. Only called where dispatch.cc found both.
#include "kernels/isa_avx2.h"
#include "kernels/step_loops.h"

namespace ringdp::kernels {
namespace {

struct Fused : Avx2 {
  using Values = Vector<float, 8>;
  static Values fma(Values a, Values b, Values c) { return _mm256_fmadd_ps(a, b, c); }
  static Values root(Values v) { return _mm256_sqrt_ps(v); }
};

constexpr StepKernels kKernels = StepLoops<Fused>::kernels(true);

}  // namespace

const StepKernels& avx2_step_kernels() { return kKernels; }

}  // namespace ringdp::kernels
