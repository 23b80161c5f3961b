// Encodings of sums on the wire: what a WireType makes of floats, and back; the same bits on every instruction set.
//
// bf16, fp16: each element to nearest even; infinities and NaN stay, and what fp16 cannot hold becomes infinity.
// int8, fp8 (e4m3: 4 bits of exponent, 3 of fraction, largest value 448): blocks of kWireBlock elements, the last one
// may be shorter. A block is its scale, a float32, then a byte per element: code(x / scale) to nearest even, where
// scale = (largest magnitude) / (largest code), no smaller than makes the smallest non-zero value a normal float32, and
// no larger than keeps the largest one finite; the next power of two instead if that loses nothing (as with blocks of
// small whole numbers). A block that holds an infinity or a NaN has the scale NaN and decodes to NaN as a whole.
// Elements pass through float32: float64 values are first rounded to it, and those beyond its range become infinite.
// The wire is little-endian, as all machines are that this runs on.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace ringdp::kernels {

// `encoded` has encoded_bytes(wire, count) bytes; elements are of the float type `dtype`. Buffers need only the
// alignment of their element type and do not overlap. Thread-safe. InvalidArgument: a dtype that is not a real float,
// the wire type fp32 (which encodes nothing), a count below 0; nothing is written then.
void encode(WireType wire, DType dtype, const void* src, void* encoded, int64_t count);
void decode(WireType wire, DType dtype, const void* encoded, void* dst, int64_t count);

}  // namespace ringdp::kernels
