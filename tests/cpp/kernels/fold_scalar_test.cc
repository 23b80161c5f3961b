// The fold suite on the compiler's baseline, which every machine runs.
#include "fold_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Baseline, FoldSuite, Baseline);

}  // namespace ringdp::kernels::testing
