// Wire types: in how many bytes the elements of a sum travel on links, and which sums a wire type applies to.
//
// kFp32 is the default and stands for "as it is". Anything else is lossy on purpose: each contribution is rounded once
// before it is sent, and the result once more (the bits are defined in kernels/codec.h). kFp8 (e4m3) and kInt8 come in
// blocks: one float32 scale, then a byte for each of its elements.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace ringdp {

enum class WireType : uint8_t { kFp32, kBf16, kFp16, kFp8, kInt8 };
constexpr int kWireTypeCount = 5;

// Elements that share a scale. Slices and segments are cut at its multiples, so that blocks never depend on how many
// ranks there are or how a tensor is cut into segments.
constexpr int64_t kWireBlock = 256;

const char* name_of(WireType wire);  // as in the settings: "bf16"

// Bytes of `count` elements, which start a block, scales included.
int64_t encoded_bytes(WireType wire, int64_t count);

// Whether sums of `dtype` by `op` travel encoded: real floating types that are wider than the wire type's elements.
bool is_encoded(WireType wire, DType dtype, ReduceOp op);

}  // namespace ringdp
