// The fold suite on AVX-512.
#include "fold_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx512, FoldSuite, Avx512);

}  // namespace ringdp::kernels::testing
