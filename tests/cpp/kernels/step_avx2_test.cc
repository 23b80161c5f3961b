// The step suite on AVX2.
#include "instruction_sets.h"
#include "step_suite.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, StepSuite, StepsOf<Avx2>);

}  // namespace ringdp::kernels::testing
