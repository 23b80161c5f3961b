// Copies past the caches on AVX2. Only called where dispatch.cc found it.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/copy.h"

namespace ringdp::kernels {

void avx2_copy_past_caches(const void* src, void* dst, int64_t bytes) {
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

}  // namespace ringdp::kernels
