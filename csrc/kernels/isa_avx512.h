// AVX-512 (F, BW, VL, DQ), as an Isa (vectors.h). Include only in files compiled for it.
//
// In an anonymous namespace on purpose: each file that includes it has kernels of its own, see vectors.h.
#pragma once
#include <immintrin.h>

#include "kernels/vectors.h"

namespace ringdp::kernels {
namespace {

struct Avx512 {
  static constexpr int kVectorBytes = 64;
  // The zero-masked forms: the plain ones pass an undefined register along, which GCC 12 warns about.
  static constexpr __mmask16 kAll = 0xffff;
  static Vector<uint32_t, 16> extend(Vector<uint16_t, 16> lanes) {
    return __builtin_bit_cast(Vector<uint32_t, 16>,
                              _mm512_maskz_cvtepu16_epi32(kAll, __builtin_bit_cast(__m256i, lanes)));
  }
  static Vector<uint16_t, 16> truncate(Vector<uint32_t, 16> lanes) {
    return __builtin_bit_cast(Vector<uint16_t, 16>,
                              _mm512_maskz_cvtepi32_epi16(kAll, __builtin_bit_cast(__m512i, lanes)));
  }
  static Vector<float, 16> half_to_float(Vector<uint16_t, 16> half) {
    return _mm512_maskz_cvtph_ps(kAll, __builtin_bit_cast(__m256i, half));
  }
  static Vector<uint16_t, 16> float_to_half(Vector<float, 16> value) {
    return __builtin_bit_cast(Vector<uint16_t, 16>, _mm512_maskz_cvtps_ph(kAll, value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace ringdp::kernels
