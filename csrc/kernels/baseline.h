// The compiler's baseline as an Isa (vectors.h): SSE2 on x86-64, NEON on aarch64.
#pragma once
#include "kernels/vectors.h"

namespace ringdp::kernels {

// IEEE half precision by integer arithmetic, for instruction sets without a conversion: the bits of F16C.
//
// Exact on all 65536 halves; rounds to nearest even; magnitudes from 65520 on become infinity. No intermediate
// value is a subnormal float, so flush-to-zero modes change nothing.
template <class Isa>
struct HalfBits {
  using Values = typename Floats<Isa>::Values;
  using Bits = typename Floats<Isa>::Bits;
  using ShortBits = typename Floats<Isa>::ShortBits;

  static constexpr uint32_t kSmallestNormalHalf = 113u << 23;  // 2^-14 as float
  static constexpr uint32_t kHalfInfinity = 143u << 23;        // 2^16 as float
  static constexpr uint32_t kFloatInfinity = 255u << 23;

  static Values half_to_float(ShortBits half) {
    const Bits bits = Isa::extend(half);
    const Bits sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    const Bits normal = magnitude + (112u << 23);
    // A subnormal m * 2^-24 is (1 + m * 2^-10) * 2^-14 - 2^-14, and that difference is exact.
    const Values one_up = __builtin_bit_cast(Values, magnitude + kSmallestNormalHalf);
    const Bits subnormal = __builtin_bit_cast(Bits, one_up - __builtin_bit_cast(float, kSmallestNormalHalf));
    const Bits finite = magnitude < (1u << 23) ? subnormal : normal;
    return __builtin_bit_cast(Values, sign | (magnitude < (31u << 23) ? finite : magnitude | kFloatInfinity));
  }

  static ShortBits float_to_half(Values value) {
    const Bits bits = __builtin_bit_cast(Bits, value);
    const Bits sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Added to 0.5, whose last bit is worth 2^-24, a small magnitude is rounded to a multiple of 2^-24 by the adder.
    const Bits aligned = __builtin_bit_cast(Bits, __builtin_bit_cast(Values, magnitude) + 0.5f);
    const Bits subnormal = aligned - __builtin_bit_cast(uint32_t, 0.5f);
    const Bits normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Bits finite = magnitude < kSmallestNormalHalf ? subnormal : normal;
    const Bits beyond = magnitude > kFloatInfinity ? Bits{} + 0x7e00u : Bits{} + 0x7c00u;
    return Isa::truncate(sign | (magnitude < kHalfInfinity ? finite : beyond));
  }
};

// In an anonymous namespace on purpose: each file that includes it has kernels of its own, see vectors.h.
namespace {

struct Baseline {
  static constexpr int kVectorBytes = 16;
  // Shuffles, because GCC 12 turns a conversion of 8-byte vectors into scalar code. Little-endian lanes.
  static Vector<uint32_t, 4> extend(Vector<uint16_t, 4> lanes) {
    const Vector<uint64_t, 2> low{__builtin_bit_cast(uint64_t, lanes), 0};
    const auto shorts = __builtin_bit_cast(Vector<uint16_t, 8>, low);
    const Vector<uint16_t, 8> zero{};
    return __builtin_bit_cast(Vector<uint32_t, 4>, __builtin_shufflevector(shorts, zero, 0, 8, 1, 9, 2, 10, 3, 11));
  }
  // Lanes are at most 0xffff.
  static Vector<uint16_t, 4> truncate(Vector<uint32_t, 4> lanes) {
    const auto shorts = __builtin_bit_cast(Vector<uint16_t, 8>, lanes);
    const auto packed = __builtin_shufflevector(shorts, shorts, 0, 2, 4, 6, 8, 10, 12, 14);
    return __builtin_bit_cast(Vector<uint16_t, 4>, __builtin_bit_cast(Vector<uint64_t, 2>, packed)[0]);
  }
  static auto half_to_float(Vector<uint16_t, 4> half) { return HalfBits<Baseline>::half_to_float(half); }
  static auto float_to_half(Vector<float, 4> value) { return HalfBits<Baseline>::float_to_half(value); }
};

}  // namespace

}  // namespace ringdp::kernels
