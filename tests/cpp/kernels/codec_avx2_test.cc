// The codec suite on AVX2.
#include "codec_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, CodecSuite, Avx2);

}  // namespace ringdp::kernels::testing
