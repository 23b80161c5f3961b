// The codec suite on the compiler's baseline, which every machine runs.
#include "codec_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Baseline, CodecSuite, Baseline);

}  // namespace ringdp::kernels::testing
