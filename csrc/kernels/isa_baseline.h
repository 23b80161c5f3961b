// The compiler's baseline as an Isa (vectors.h): SSE2 on x86-64, NEON on aarch64.
//
// In an anonymous namespace on purpose: each file that includes it has kernels of its own, see vectors.h.
#pragma once
#include "kernels/half_bits.h"
#include "kernels/vectors.h"

namespace ringdp::kernels {
namespace {

struct Baseline {
  static constexpr int kVectorBytes = 16;
  // Shuffles, because GCC 12 turns a conversion of 8-byte vectors into scalar code. Little-endian lanes.
  static Vector<uint32_t, 4> extend(Vector<uint16_t, 4> lanes) {
    const Vector<uint64_t, 2> low{__builtin_bit_cast(uint64_t, lanes), 0};
    const auto shorts = __builtin_bit_cast(Vector<uint16_t, 8>, low);
    const Vector<uint16_t, 8> zero{};
    return __builtin_bit_cast(Vector<uint32_t, 4>,
                              __builtin_shufflevector(shorts, zero, 0, 8, 1, 9, 2, 10, 3, 11));
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
