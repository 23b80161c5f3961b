// The codec suite on AVX2.
#include "codec_suite.h"

namespace ringdp::kernels::testing {

struct Avx2 {
  static const char* name() { return "avx2"; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Avx2, CodecSuite, Avx2);

}  // namespace ringdp::kernels::testing
