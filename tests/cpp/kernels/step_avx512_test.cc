// The step suite on AVX-512.
#include "instruction_sets.h"
#include "step_suite.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx512, StepSuite, StepsOf<Avx512>);

}  // namespace ringdp::kernels::testing
