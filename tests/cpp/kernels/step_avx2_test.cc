// The step suite on AVX2.
#include "step_suite.h"

namespace ringdp::kernels::testing {

struct Avx2 {
  static const StepKernels* kernels() { return step_kernels_of("avx2"); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, StepSuite, Avx2);

}  // namespace ringdp::kernels::testing
