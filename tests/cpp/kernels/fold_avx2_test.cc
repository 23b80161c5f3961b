// The fold suite on AVX2.
#include "fold_suite.h"

namespace ringdp::kernels::testing {

struct Avx2 {
  static const char* name() { return "avx2"; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, FoldSuite, Avx2);

}  // namespace ringdp::kernels::testing
