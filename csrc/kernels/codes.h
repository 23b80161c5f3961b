// Codes of blocks of floats, with error feedback, for gradients that are compressed; the same bits on every instruction
// set.
//
// A block is its scale, a float32, then its codes; the last one is filled up with zeros.
//   int8, fp8  kWireBlock elements of a byte, as on the wire (codec.h)
//   int4       the same with whole numbers from -7 to 7, to which 8 is added: two in a byte, the lower half first
//   sign       kSignBlock elements of a bit, the lowest first: 1 from 0 and -0 on. The scale is the mean magnitude of
//              elements that are not 0; magnitudes are added up half by half: [0, n/2) + [n/2, n), and so on
// A block that holds an infinity or a NaN, or whose magnitudes add up to infinity, decodes to NaN as a whole.
//
// Error feedback (arXiv 1809.07599, 1901.09847): what the codes of a step leave out, the residual, is added to the
// values of the next one. A block that is NaN leaves none.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace ringdp::kernels {

enum class Code : uint8_t { kInt8, kFp8, kInt4, kSign };

constexpr int64_t kSignBlock = 512;

constexpr int64_t code_block(Code code) { return code == Code::kSign ? kSignBlock : kWireBlock; }
constexpr int64_t code_block_bytes(Code code) {
  const int64_t elements = code_block(code);
  const int64_t codes = code == Code::kSign ? elements / 8 : code == Code::kInt4 ? elements / 2 : elements;
  return static_cast<int64_t>(sizeof(float)) + codes;
}

// `count` floats in `blocks` blocks, code_block_bytes() each; further blocks are those of zeros. `residuals`: as many
// floats, which are added, and become what the codes leave out; or null: no feedback. Buffers do not overlap.
// Thread-safe. InvalidArgument: a negative count, or one that the blocks cannot hold; nothing is written then.
void encode(Code code, const float* values, float* residuals, int64_t count, std::byte* encoded, int64_t blocks);

// Whole blocks. Thread-safe. InvalidArgument: a negative number of them.
void decode(Code code, const std::byte* encoded, int64_t blocks, float* values);

}  // namespace ringdp::kernels
