// The fold suite on AVX2.
#include "fold_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, FoldSuite, Avx2);

}  // namespace ringdp::kernels::testing
