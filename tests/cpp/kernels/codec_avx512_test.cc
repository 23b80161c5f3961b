// The codec suite on AVX-512.
#include "codec_suite.h"

namespace ringdp::kernels::testing {

struct Avx512 {
  static const char* name() { return "avx512"; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx512, CodecSuite, Avx512);

}  // namespace ringdp::kernels::testing
