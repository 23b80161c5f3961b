// The codec suite on the compiler's baseline, which every machine runs.
#include "codec_suite.h"

namespace ringdp::kernels::testing {

struct Baseline {
  static const char* name() { return supported_instruction_sets().back().name; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Baseline, CodecSuite, Baseline);

}  // namespace ringdp::kernels::testing
