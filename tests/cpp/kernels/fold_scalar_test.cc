// The fold suite on the compiler's baseline, which every machine runs.
#include "fold_suite.h"

namespace ringdp::kernels::testing {

struct Baseline {
  static const char* name() { return supported_instruction_sets().back().name; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Baseline, FoldSuite, Baseline);

}  // namespace ringdp::kernels::testing
