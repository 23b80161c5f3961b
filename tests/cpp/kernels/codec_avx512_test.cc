// The codec suite on AVX-512.
#include "codec_suite.h"
#include "instruction_sets.h"

namespace ringdp::kernels::testing {

INSTANTIATE_TYPED_TEST_SUITE_P(Avx512, CodecSuite, Avx512);

}  // namespace ringdp::kernels::testing
