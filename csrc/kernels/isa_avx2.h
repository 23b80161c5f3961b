// AVX2 with F16C, as an Isa (vectors.h). Include only in files compiled for it.
//
// In an anonymous namespace on purpose: each file that includes it has kernels of its own, see vectors.h.
#pragma once
#include <immintrin.h>

#include "kernels/vectors.h"

namespace ringdp::kernels {
namespace {

struct Avx2 {
  static constexpr int kVectorBytes = 32;
  static Vector<uint32_t, 8> extend(Vector<uint16_t, 8> lanes) {
    return __builtin_bit_cast(Vector<uint32_t, 8>, _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, lanes)));
  }
  // Lanes are at most 0xffff. The pack works within 128-bit halves; the permutation puts the halves together.
  static Vector<uint16_t, 8> truncate(Vector<uint32_t, 8> lanes) {
    const __m256i wide = __builtin_bit_cast(__m256i, lanes);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0b1000);
    return __builtin_bit_cast(Vector<uint16_t, 8>, _mm256_castsi256_si128(packed));
  }
  static Vector<float, 8> half_to_float(Vector<uint16_t, 8> half) {
    return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, half));
  }
  static Vector<uint16_t, 8> float_to_half(Vector<float, 8> value) {
    return __builtin_bit_cast(Vector<uint16_t, 8>, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace ringdp::kernels
