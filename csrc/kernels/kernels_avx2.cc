// The kernels on AVX2 with F16C and FMA. Only called where dispatch.cc found them.
//
// The Isa (vectors.h) is in an anonymous namespace on purpose: the kernels that are made of it are this file's own.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/checksum_loop.h"
#include "kernels/codec_loops.h"
#include "kernels/dispatch.h"
#include "kernels/fold_loops.h"
#include "kernels/step_loops.h"
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

// For optimizer steps.
struct Fused : Avx2 {
  using Values = Vector<float, 8>;
  static Values fma(Values a, Values b, Values c) { return _mm256_fmadd_ps(a, b, c); }
  static Values root(Values v) { return _mm256_sqrt_ps(v); }
};

constexpr StepKernels kKernels = StepLoops<Fused>::kernels(true);

}  // namespace

Kernel pick_avx2_kernel(const KernelKey& key) { return Picker<Avx2>::pick(key); }
Kernel pick_avx2_tree_kernel(const KernelKey& key) { return TreePicker<Avx2>::pick(key); }

const Codec& avx2_codec() { return CodecLoops<Avx2>::kCodec; }

const StepKernels& avx2_step_kernels() { return kKernels; }

void avx2_copy_nontemporal(const void* src, void* dst, int64_t bytes) {
  constexpr int64_t kLine = 64, kVector = sizeof(__m256i);
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(dst);
  const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % kLine);
  int64_t at = std::min(bytes, misplaced == 0 ? 0 : kLine - misplaced);
  std::memcpy(to, from, static_cast<size_t>(at));
  for (; bytes - at >= kLine; at += kLine) {  // whole lines: the processor joins their stores
    const auto* line = reinterpret_cast<const __m256i*>(from + at);
    const __m256i low = _mm256_loadu_si256(line), high = _mm256_loadu_si256(line + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + kVector), high);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

uint64_t avx2_unordered_checksum(const void* elements, int64_t count, int64_t element_bytes) {
  return sum_by_size(elements, count, element_bytes);
}

}  // namespace ringdp::kernels
