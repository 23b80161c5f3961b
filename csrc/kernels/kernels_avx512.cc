// The kernels on AVX-512 (F, BW, VL, DQ). Only called where dispatch.cc found them.
//
// The Isa (vectors.h) is in an anonymous namespace on purpose: the kernels that are made of it are this file's own.
#include <immintrin.h>

#include "kernels/codec_loops.h"
#include "kernels/dispatch.h"
#include "kernels/fold_loops.h"
#include "kernels/step_loops.h"
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

// For optimizer steps.
struct Fused : Avx512 {
  using Values = Vector<float, 16>;
  static Values fma(Values a, Values b, Values c) { return _mm512_fmadd_ps(a, b, c); }
  static Values root(Values v) { return _mm512_maskz_sqrt_ps(kAll, v); }
};

constexpr StepKernels kKernels = StepLoops<Fused>::kernels(true);

}  // namespace

Kernel pick_avx512_kernel(const KernelKey& key) { return Picker<Avx512>::pick(key); }
Kernel pick_avx512_tree_kernel(const KernelKey& key) { return TreePicker<Avx512>::pick(key); }

const Codec& avx512_codec() { return CodecLoops<Avx512>::kCodec; }

const StepKernels& avx512_step_kernels() { return kKernels; }

}  // namespace ringdp::kernels
