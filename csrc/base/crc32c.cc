#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace ringdp {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;

// [k][b]: the checksum of byte b followed by k zero bytes.
using Table = std::array<std::array<uint32_t, 256>, 8>;

constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) ? kPolynomial : 0);
    table[0][byte] = sum;
  }
  for (size_t k = 1; k < table.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte)
      table[k][byte] = table[0][table[k - 1][byte] & 255] ^ (table[k - 1][byte] >> 8);
  }
  return table;
}

constexpr Table kTable = make_table();

template <class Word>
Word load(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

uint32_t next(uint32_t sum, std::byte byte) {
  return kTable[0][(sum ^ std::to_integer<uint32_t>(byte)) & 255] ^ (sum >> 8);
}

// Eight bytes at a time (Kounavis and Berry, "slicing by 8", 2005).
uint32_t by_table(uint32_t before, const void* bytes, size_t size) {
  const auto* at = static_cast<const std::byte*>(bytes);
  uint32_t sum = ~before;
  for (; size >= 8; at += 8, size -= 8) {
    uint32_t next_sum = 0;
    for (size_t i = 0; i < 8; ++i) {
      const uint32_t byte = std::to_integer<uint32_t>(at[i]) ^ (i < 4 ? (sum >> (8 * i)) & 255 : 0);
      next_sum ^= kTable[7 - i][byte];
    }
    sum = next_sum;
  }
  for (; size > 0; ++at, --size) sum = next(sum, *at);
  return ~sum;
}

#if defined(__x86_64__) || defined(__aarch64__)

// An instruction gives its result after three cycles, and one can begin in each: three stretches are summed side by
// side, and joined by what the bytes of a stretch do to the sum before it, a linear map kept as a table (after Mark
// Adler's crc32c.c).
constexpr size_t kStretch = 1024;

struct PastStretch {
  std::array<std::array<uint32_t, 256>, 4> table;

  PastStretch() {
    for (size_t k = 0; k < table.size(); ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t sum = byte << (8 * k);
        for (size_t zeros = 0; zeros < kStretch; ++zeros) sum = next(sum, std::byte{0});
        table[k][byte] = sum;
      }
    }
  }
  uint32_t operator()(uint32_t sum) const {
    return table[0][sum & 255] ^ table[1][(sum >> 8) & 255] ^ table[2][(sum >> 16) & 255] ^ table[3][sum >> 24];
  }
};

const PastStretch& past_stretch() {
  static const PastStretch kPast;
  return kPast;
}

#if defined(__x86_64__)
#define WITH_CRC __attribute__((target("sse4.2")))
WITH_CRC inline uint32_t sum_8(uint32_t sum, uint64_t word) { return static_cast<uint32_t>(_mm_crc32_u64(sum, word)); }
WITH_CRC inline uint32_t sum_1(uint32_t sum, uint8_t byte) { return _mm_crc32_u8(sum, byte); }
constexpr char kName[] = "sse4.2";
bool has_instructions() { return __builtin_cpu_supports("sse4.2"); }
#else
#define WITH_CRC __attribute__((target("+crc")))
WITH_CRC inline uint32_t sum_8(uint32_t sum, uint64_t word) { return __crc32cd(sum, word); }
WITH_CRC inline uint32_t sum_1(uint32_t sum, uint8_t byte) { return __crc32cb(sum, byte); }
constexpr char kName[] = "armv8";
bool has_instructions() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

WITH_CRC uint32_t by_instructions(uint32_t before, const void* bytes, size_t size) {
  const auto* at = static_cast<const std::byte*>(bytes);
  uint32_t sum = ~before;
  for (; size >= 3 * kStretch; at += 3 * kStretch, size -= 3 * kStretch) {
    const PastStretch& past = past_stretch();
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      sum = sum_8(sum, load<uint64_t>(at + i));
      second = sum_8(second, load<uint64_t>(at + kStretch + i));
      third = sum_8(third, load<uint64_t>(at + 2 * kStretch + i));
    }
    sum = past(past(sum) ^ second) ^ third;
  }
  for (; size >= 8; at += 8, size -= 8) sum = sum_8(sum, load<uint64_t>(at));
  for (; size > 0; ++at, --size) sum = sum_1(sum, std::to_integer<uint8_t>(*at));
  return ~sum;
}

#endif

#if defined(__x86_64__)

// x^n modulo the polynomial, its highest bit last.
constexpr uint64_t power_of_x(int n) {
  uint32_t power = 0x80000000;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) ? kPolynomial : 0);
  return power;
}

// What multiplies the two words of a lane of 128 bits, so that they may be added to a lane `bits` further on.
struct Further {
  uint64_t low, high;
};
constexpr Further further(int bits) { return {power_of_x(bits + 31), power_of_x(bits - 33)}; }

#define WITH_FOLDS __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

WITH_FOLDS inline __m512i in_all_lanes(Further by) {
  const __m128i lane = _mm_set_epi64x(static_cast<int64_t>(by.high), static_cast<int64_t>(by.low));
  return _mm512_broadcast_i32x4(lane);
}

WITH_FOLDS inline __m512i folded(__m512i lanes, __m512i by, __m512i onto) {
  constexpr int kSumOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, by, 0x00), _mm512_clmulepi64_epi128(lanes, by, 0x11),
                                   onto, kSumOfThree);
}

// 256 bytes at a time: carry-less products move four vectors onto the next four (Gopal et al., "Fast CRC computation
// for generic polynomials using PCLMULQDQ", 2009); the instruction divides what is left at the end. About four times as
// fast.
WITH_FOLDS uint32_t by_folding(uint32_t before, const void* bytes, size_t size) {
  constexpr size_t kVector = 64, kBlock = 4 * kVector;
  constexpr Further kByVector = further(8 * kVector), kByBlock = further(8 * kBlock);
  if (size < 2 * kBlock) return by_instructions(before, bytes, size);
  const auto* at = static_cast<const std::byte*>(bytes);
  __m512i first = _mm512_loadu_si512(at), second = _mm512_loadu_si512(at + kVector);
  __m512i third = _mm512_loadu_si512(at + 2 * kVector), fourth = _mm512_loadu_si512(at + 3 * kVector);
  first = _mm512_xor_si512(first, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~before))));
  const __m512i by_block = in_all_lanes(kByBlock);
  for (at += kBlock, size -= kBlock; size >= kBlock; at += kBlock, size -= kBlock) {
    first = folded(first, by_block, _mm512_loadu_si512(at));
    second = folded(second, by_block, _mm512_loadu_si512(at + kVector));
    third = folded(third, by_block, _mm512_loadu_si512(at + 2 * kVector));
    fourth = folded(fourth, by_block, _mm512_loadu_si512(at + 3 * kVector));
  }
  const __m512i by_vector = in_all_lanes(kByVector);
  const __m512i one = folded(folded(folded(first, by_vector, second), by_vector, third), by_vector, fourth);
  std::array<uint64_t, 8> words;
  _mm512_storeu_si512(words.data(), one);
  uint32_t sum = 0;
  for (const uint64_t word : words) sum = sum_8(sum, word);
  return by_instructions(~sum, at, size);
}

bool has_folds() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("pclmul") && has_instructions();
}

#endif

}  // namespace

const std::vector<Crc32cMethod>& crc32c_methods() {
  static const std::vector<Crc32cMethod> kMethods = [] {
    std::vector<Crc32cMethod> methods;
#if defined(__x86_64__)
    if (has_folds()) methods.push_back({"avx512", by_folding});
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    if (has_instructions()) methods.push_back({kName, by_instructions});
#endif
    methods.push_back({"table", by_table});
    return methods;
  }();
  return kMethods;
}

uint32_t crc32c(uint32_t before, const void* bytes, size_t size) {
  static const auto kSum = crc32c_methods().front().sum;
  return kSum(before, bytes, size);
}

}  // namespace ringdp
