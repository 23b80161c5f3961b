// What fold must give, one element at a time: the oracle of the kernel tests.
//
// Conversions of 16-bit floats are written from the definition of the formats (ldexp, nearbyint), so they share
// nothing with the bit tricks and instructions under test.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/fold.h"

namespace ringdp::kernels::testing {

// A binary floating-point format of 16 bits.
struct ShortFormat {
  int mantissa_bits;
  int lowest_exponent;
  uint16_t infinity, nan;
};
constexpr ShortFormat kHalfFormat{10, -14, 0x7c00, 0x7e00};
constexpr ShortFormat kBFloat16Format{7, -126, 0x7f80, 0x7fc0};

inline float decode(const ShortFormat& f, uint16_t bits) {
  const int magnitude = bits & 0x7fff, implicit = 1 << f.mantissa_bits;
  const int field = magnitude >> f.mantissa_bits, fraction = magnitude & (implicit - 1);
  float value = field == 0 ? std::ldexp(float(fraction), f.lowest_exponent - f.mantissa_bits)
                           : std::ldexp(float(fraction + implicit), f.lowest_exponent + field - 1 - f.mantissa_bits);
  if (magnitude == f.infinity) value = std::numeric_limits<float>::infinity();
  if (magnitude > f.infinity) value = std::numeric_limits<float>::quiet_NaN();
  return bits & 0x8000 ? -value : value;
}

inline uint16_t encode(const ShortFormat& f, float value) {
  if (std::isnan(value)) return f.nan;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (value == 0 || std::isinf(value)) return sign | (value == 0 ? 0 : f.infinity);
  const int exponent = std::max(std::ilogb(value), f.lowest_exponent);
  const double quanta = std::nearbyint(std::ldexp(std::fabs(double(value)), f.mantissa_bits - exponent));
  const int64_t bits = (int64_t(exponent - f.lowest_exponent) << f.mantissa_bits) + int64_t(quanta);
  return sign | uint16_t(std::min<int64_t>(bits, f.infinity));
}

inline float widen(Half x) { return decode(kHalfFormat, x.bits); }
inline float widen(BFloat16 x) { return decode(kBFloat16Format, x.bits); }
template <class T>
T widen(T x) { return x; }

inline void narrow(float x, Half& to) { to.bits = encode(kHalfFormat, x); }
inline void narrow(float x, BFloat16& to) { to.bits = encode(kBFloat16Format, x); }
template <class T>
void narrow(T x, T& to) { to = x; }

inline bool adds(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
}

template <class W>
W apply(ReduceOp op, W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if (adds(op)) return a + b;
    if (op == ReduceOp::kProduct) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<W>::quiet_NaN();
  } else {
    if (op == ReduceOp::kBand) return static_cast<W>(a & b);
    if (op == ReduceOp::kBor) return static_cast<W>(a | b);
    if (op == ReduceOp::kBxor) return static_cast<W>(a ^ b);
    if (adds(op)) return static_cast<W>(uint64_t(a) + uint64_t(b));
    if (op == ReduceOp::kProduct) return static_cast<W>(uint64_t(a) * uint64_t(b));
  }
  return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);  // std keeps the first of two equal values
}

// One result of args, written to `dst` in the width args asks for; every value goes through memcpy.
template <class T>
void fold_element(const FoldArgs& args, int64_t i, char* dst) {
  using W = decltype(widen(T{}));
  W sum{};
  for (int k = 0; k < args.n_srcs; ++k) {
    T narrow_value;
    W value;
    const char* const src = static_cast<const char*>(args.srcs[k]);
    if (k == 0 && args.wide_src) {
      std::memcpy(&value, src + i * sizeof(W), sizeof(W));
    } else {
      std::memcpy(&narrow_value, src + i * sizeof(T), sizeof(T));
      value = widen(narrow_value);
    }
    sum = k == 0 ? value : apply(args.op, sum, value);
  }
  if (args.divisor != 0) sum = sum / static_cast<W>(args.divisor);
  if (sum != sum) sum = std::numeric_limits<W>::quiet_NaN();
  T rounded;
  narrow(sum, rounded);
  args.wide_dst ? std::memcpy(dst, &sum, sizeof(W)) : std::memcpy(dst, &rounded, sizeof(T));
}

}  // namespace ringdp::kernels::testing
