// The step suite on AVX-512.
#include "step_suite.h"

namespace ringdp::kernels::testing {

struct Avx512 {
  static const StepKernels* kernels() { return step_kernels_of("avx512"); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx512, StepSuite, Avx512);

}  // namespace ringdp::kernels::testing
