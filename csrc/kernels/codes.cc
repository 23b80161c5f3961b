#include "kernels/codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr int64_t kMostElements = kSignBlock > kWireBlock ? kSignBlock : kWireBlock;

void check(int64_t count, int64_t blocks, int64_t block) {
  if (count >= 0 && blocks >= 0 && (count + block - 1) / block <= blocks) return;
  throw Error(ErrorKind::kInvalidArgument, "codes: " + std::to_string(count) + " elements in " +
                                               std::to_string(blocks) + " blocks of " + std::to_string(block));
}

bool is_nan(const std::byte* encoded) {
  float scale;
  std::memcpy(&scale, encoded, sizeof scale);
  return std::isnan(scale);
}

}  // namespace

void encode_with(const Codec& codec, Code code, const float* values, float* residuals, int64_t count,
                 std::byte* encoded, int64_t blocks) {
  const int64_t block = code_block(code);
  check(count, blocks, block);
  alignas(64) float sums[kMostElements], decoded[kMostElements];
  for (int64_t i = 0; i < blocks; ++i, encoded += code_block_bytes(code)) {
    const int64_t begin = std::min(i * block, count), n = std::min(block, count - begin);
    std::copy_n(values + begin, n, sums);
    std::fill(sums + n, sums + block, 0.0f);
    if (residuals == nullptr) {
      codec.encode_code(code, sums, encoded);
      continue;
    }
    float* const rest = residuals + begin;
    for (int64_t k = 0; k < n; ++k) sums[k] += rest[k];
    codec.encode_code(code, sums, encoded);
    if (is_nan(encoded)) {
      std::fill_n(rest, n, 0.0f);
      continue;
    }
    codec.decode_code(code, encoded, decoded);
    for (int64_t k = 0; k < n; ++k) rest[k] = sums[k] - decoded[k];
  }
}

void decode_with(const Codec& codec, Code code, const std::byte* encoded, int64_t blocks, float* values) {
  const int64_t block = code_block(code);
  check(0, blocks, block);
  for (int64_t i = 0; i < blocks; ++i, encoded += code_block_bytes(code), values += block) {
    if (is_nan(encoded)) {
      std::fill_n(values, block, std::numeric_limits<float>::quiet_NaN());
    } else {
      codec.decode_code(code, encoded, values);
    }
  }
}

void encode(Code code, const float* values, float* residuals, int64_t count, std::byte* encoded, int64_t blocks) {
  encode_with(supported_instruction_sets().front().codec, code, values, residuals, count, encoded, blocks);
}

void decode(Code code, const std::byte* encoded, int64_t blocks, float* values) {
  decode_with(supported_instruction_sets().front().codec, code, encoded, blocks, values);
}

}  // namespace ringdp::kernels
