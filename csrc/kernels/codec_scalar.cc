// The codec on The compiler's baseline.
#include "kernels/codec_loops.h"
#include "kernels/isa_baseline.h"

namespace ringdp::kernels {

const Codec& scalar_codec() { return CodecLoops<Baseline>::kCodec; }

}  // namespace ringdp::kernels
