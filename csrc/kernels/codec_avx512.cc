// The codec on AVX-512 (F, BW, VL, DQ). Only called where dispatch.cc found them.
#include "kernels/codec_loops.h"
#include "kernels/isa_avx512.h"

namespace ringdp::kernels {

const Codec& avx512_codec() { return CodecLoops<Avx512>::kCodec; }

}  // namespace ringdp::kernels
