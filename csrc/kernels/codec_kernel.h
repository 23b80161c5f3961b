// Contract between `encode`/`decode` (cut into blocks) and the codec kernels (one instruction set each).
//
// Every kernel works on one whole block of kWireBlock elements; none keeps a pointer.
#pragma once
#include <cstddef>

#include "base/wire_type.h"

namespace ringdp::kernels {

struct Codec {
  void (*widen)(DType dtype, const std::byte* elements, float* block);
  void (*narrow)(DType dtype, const float* block, std::byte* elements);
  void (*encode)(WireType wire, const float* block, std::byte* encoded);
  void (*decode)(WireType wire, const std::byte* encoded, float* block);
};

const Codec& scalar_codec();
const Codec& avx2_codec();
const Codec& avx512_codec();

// `encode` and `decode` on chosen kernels: what the tests of one instruction set call.
void encode_with(const Codec& codec, WireType wire, DType dtype, const void* src, void* encoded, int64_t count);
void decode_with(const Codec& codec, WireType wire, DType dtype, const void* encoded, void* dst, int64_t count);

}  // namespace ringdp::kernels
