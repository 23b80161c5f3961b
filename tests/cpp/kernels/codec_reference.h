// What each wire type makes of floats, the slow way: in double, from the definitions of the formats.
//
// Independent of csrc/kernels; tests of other rooms use it as their oracle.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace ringdp::kernels::testing {

using Encoded = std::vector<std::byte>;

// A binary format: significant bits with the leading one, smallest normal exponent, largest finite value.
struct Format {
  int significant, smallest_exponent;
  double largest;
  int bits;
};
inline const Format kBFloat16{8, -126, 0x1.fep127, 16};
inline const Format kHalf{11, -14, 65504, 16};
inline const Format kE4m3{4, -6, 448, 8};

inline double quantum(const Format& f, double value) {
  const int exponent = value == 0 ? f.smallest_exponent : std::max(std::ilogb(value), f.smallest_exponent);
  return std::ldexp(1.0, exponent - (f.significant - 1));
}

inline double rounded(const Format& f, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double unit = quantum(f, value), result = std::nearbyint(value / unit) * unit;
  return std::fabs(result) > f.largest ? std::copysign(INFINITY, value) : result;
}

// Of a value of the format.
inline uint32_t bits_of(const Format& f, double value) {
  const int fraction = f.significant - 1;
  const uint32_t exponents = (1u << (f.bits - f.significant)) - 1;
  if (std::isnan(value)) return exponents << fraction | 1u << (fraction - 1);
  const uint32_t sign = std::signbit(value) ? 1u << (f.bits - 1) : 0;
  if (std::isinf(value)) return sign | exponents << fraction;
  const auto units = static_cast<uint32_t>(std::fabs(value) / quantum(f, value));
  const bool normal = units >> fraction != 0;
  const uint32_t exponent = normal ? std::ilogb(value) - f.smallest_exponent + 1 : 0;
  return sign | exponent << fraction | (units & ((1u << fraction) - 1));
}

inline double value_of(const Format& f, uint32_t bits) {
  const int fraction = f.significant - 1;
  const uint32_t exponents = (1u << (f.bits - f.significant)) - 1;
  const uint32_t exponent = bits >> fraction & exponents, units = bits & ((1u << fraction) - 1);
  const double sign = bits >> (f.bits - 1) ? -1 : 1;
  if (f.bits == 16 && exponent == exponents) return units ? std::nan("") : sign * INFINITY;
  const int shift = std::max<int>(exponent, 1) - 1 + f.smallest_exponent - fraction;
  return sign * std::ldexp(units + (exponent ? std::ldexp(1.0, fraction) : 0), shift);
}

inline bool is_scaled(WireType wire) { return wire == WireType::kFp8 || wire == WireType::kInt8; }
inline double largest_code(WireType wire) { return wire == WireType::kInt8 ? 127 : kE4m3.largest; }
inline double smallest_code(WireType wire) { return wire == WireType::kInt8 ? 1 : 0x1p-9; }
inline const Format& format_of(WireType wire) { return wire == WireType::kBf16 ? kBFloat16 : kHalf; }

inline bool is_code(WireType wire, double scaled) {
  return wire == WireType::kInt8 ? std::nearbyint(scaled) == scaled : rounded(kE4m3, scaled) == scaled;
}

// NaN when a value is not finite.
inline float scale_of(WireType wire, const float* block, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(block[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(block[i]));
  }
  const auto top = static_cast<float>(largest_code(wire));
  const float ceiling = std::nextafter(std::numeric_limits<float>::max() / top, 0.0f);
  const float floor = std::numeric_limits<float>::min() / static_cast<float>(smallest_code(wire));
  const float scale = std::clamp(largest / top, floor, ceiling);
  const auto power = static_cast<float>(std::ldexp(1.0, std::ilogb(std::nextafter(scale, 0.0f)) + 1));
  return std::all_of(block, block + count, [&](float x) { return is_code(wire, x / power); }) ? power : scale;
}

template <class T>
void append(Encoded& to, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

inline Encoded encode(WireType wire, const std::vector<float>& values) {
  Encoded out;
  for (int64_t begin = 0, size = static_cast<int64_t>(values.size()); begin < size; begin += kWireBlock) {
    const float* block = values.data() + begin;
    const int64_t count = std::min(kWireBlock, size - begin);
    const float scale = is_scaled(wire) ? scale_of(wire, block, count) : 1;
    if (is_scaled(wire)) append(out, scale);
    for (int64_t i = 0; i < count; ++i) {
      if (!is_scaled(wire)) {
        const Format& f = format_of(wire);
        append(out, static_cast<uint16_t>(bits_of(f, rounded(f, block[i]))));
      } else if (std::isnan(scale)) {
        append(out, uint8_t{0});
      } else if (wire == WireType::kInt8) {
        append(out, static_cast<int8_t>(std::nearbyint(block[i] / scale)));
      } else {
        append(out, static_cast<uint8_t>(bits_of(kE4m3, rounded(kE4m3, block[i] / scale))));
      }
    }
  }
  return out;
}

inline std::vector<float> decode(WireType wire, const std::byte* bytes, int64_t count) {
  std::vector<float> out;
  const auto take = [&bytes](auto value) {
    std::memcpy(&value, bytes, sizeof value);
    bytes += sizeof value;
    return value;
  };
  for (int64_t begin = 0; begin < count; begin += kWireBlock) {
    const float scale = is_scaled(wire) ? take(float{}) : 1;
    for (int64_t i = begin; i < std::min(begin + kWireBlock, count); ++i) {
      if (!is_scaled(wire)) {
        out.push_back(static_cast<float>(value_of(format_of(wire), take(uint16_t{}))));
      } else if (wire == WireType::kInt8) {
        out.push_back(static_cast<float>(take(int8_t{})) * scale);
      } else {
        out.push_back(static_cast<float>(value_of(kE4m3, take(uint8_t{}))) * scale);
      }
    }
  }
  return out;
}

// How far a decoded element may be from `value`, whose block's largest magnitude is `largest`.
inline double half_step(WireType wire, double value, double largest) {
  if (!is_scaled(wire)) return quantum(format_of(wire), value) / 2;
  const double floor = std::numeric_limits<float>::min() / smallest_code(wire);
  const double scale = std::max(largest / largest_code(wire), floor) * (1 + 0x1p-22);
  const double step = wire == WireType::kInt8 ? 1 : quantum(kE4m3, value / scale);
  return scale * step / 2 + std::fabs(value) * 0x1p-22;  // the division's and the product's own rounding
}

}  // namespace ringdp::kernels::testing
