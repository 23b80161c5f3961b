// The step suite on the compiler's baseline, in both roundings.
#include "step_suite.h"

namespace ringdp::kernels::testing {

struct Unfused {
  static const StepKernels* kernels() { return &scalar_step_kernels(); }
};
struct Fused {
  static const StepKernels* kernels() { return &scalar_fma_step_kernels(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Unfused, StepSuite, Unfused);
INSTANTIATE_TYPED_TEST_SUITE_P(Fused, StepSuite, Fused);

}  // namespace ringdp::kernels::testing
