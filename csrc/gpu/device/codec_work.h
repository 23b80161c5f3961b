// What one launch encodes or decodes, on one rank: elements of a floating type, and their blocks in a wire type, in the
// format of kernels/codec.h. Plain data: the argument of a kernel.
#pragma once
#include <cstdint>

#include "base/wire_type.h"

namespace ringdp::gpu {

struct CodecWork {
  const char* from;  // 16-byte aligned, both; they do not overlap
  char* to;
  int64_t count;     // elements
  int64_t held;      // encoding: elements that there are; the rest of `count` counts as zeros
  DType element;     // float32, float64, float16 or bfloat16
  WireType wire;     // not fp32, which encodes nothing
  bool encodes;      // else it decodes
};

}  // namespace ringdp::gpu
