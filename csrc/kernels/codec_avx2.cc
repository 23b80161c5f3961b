// The codec on AVX2 with F16C. Only called where dispatch.cc found both.
#include "kernels/codec_loops.h"
#include "kernels/isa_avx2.h"

namespace ringdp::kernels {

const Codec& avx2_codec() { return CodecLoops<Avx2>::kCodec; }

}  // namespace ringdp::kernels
