// A pack's elements as numbers: widened for arithmetic, rounded back to nearest even, with the bits of kernels/fold.h.
//
// Compile with contraction off (-fmad=false, -ffp-contract=off) and without fast-math: sums, then one true division,
// then one rounding. Every NaN that is computed becomes the positive quiet one.
#pragma once
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "device/kernel/pack.h"

namespace ringdp::gpu {

// kLanes numbers: one pack of raw elements, or the wide elements that belong to it.
template <class T>
struct Values {
  Wide<T> of[kLanes<T>];
};
template <class T>
constexpr int kWidePacks = sizeof(Wide<T>) / sizeof(T);

template <class T>
struct Raw {
  T of[kLanes<T>];
};

template <class Prim, class T>
__device__ Wide<T> widen(T element) {
  if constexpr (std::is_same_v<T, Half>) {
    return Prim::half_to_float(element.bits);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return bits_as<float>(uint32_t{element.bits} << 16);
  } else {
    return element;
  }
}

template <class Prim, class T>
__device__ T round_to(Wide<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    // The device's own conversion produces another NaN.
    return {value == value ? Prim::float_to_half(value) : uint16_t{0x7e00}};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t bits = bits_as<uint32_t>(value);
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  } else {
    return value;
  }
}

__device__ inline float with_one_nan(float value) { return value == value ? value : bits_as<float>(0x7fc00000u); }
__device__ inline double with_one_nan(double value) {
  return value == value ? value : bits_as<double>(uint64_t{0x7ff8} << 48);
}

template <class Prim, class T>
__device__ Values<T> unpack(Pack pack) {
  const auto raw = bits_as<Raw<T>>(pack);
  Values<T> values{};
  for (int i = 0; i < kLanes<T>; ++i) values.of[i] = widen<Prim, T>(raw.of[i]);
  return values;
}

template <class Prim, class T>
__device__ Pack pack_rounded(const Values<T>& values) {
  Raw<T> raw{};
  for (int i = 0; i < kLanes<T>; ++i) raw.of[i] = round_to<Prim, T>(values.of[i]);
  return bits_as<Pack>(raw);
}

template <class Op, class T>
__device__ void fold_into(Values<T>& sum, const Values<T>& next) {
  for (int i = 0; i < kLanes<T>; ++i) sum.of[i] = Op::apply(sum.of[i], next.of[i]);
}

// Divided where there is a divisor; the caller rounds.
template <class T>
__device__ void finish(Values<T>& sum, double divisor) {
  if constexpr (std::is_floating_point_v<Wide<T>>) {
    const auto by = static_cast<Wide<T>>(divisor);
    for (int i = 0; i < kLanes<T>; ++i) sum.of[i] = with_one_nan(by != 0 ? sum.of[i] / by : sum.of[i]);
  }
}

// How a reduce op combines two elements, and which op and type a dtype uses: the rules of kernels/fold.h.

// Small integers are promoted to int, in which the product of two uint16_t overflows: they are computed as uint64_t.
template <class V>
using Computed = typename std::conditional_t<std::is_integral_v<V>, TypeTag<uint64_t>, TypeTag<V>>::type;

struct Sum {
  template <class V>
  __device__ static V apply(V a, V b) {
    return static_cast<V>(Computed<V>(a) + Computed<V>(b));
  }
};
struct Product {
  template <class V>
  __device__ static V apply(V a, V b) {
    return static_cast<V>(Computed<V>(a) * Computed<V>(b));
  }
};
// `b != b` lets a NaN of b in; a NaN of a stays, because it compares false. The earlier of two equal values is kept.
struct Min {
  template <class V>
  __device__ static V apply(V a, V b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <class V>
  __device__ static V apply(V a, V b) {
    return b > a || b != b ? b : a;
  }
};
struct BitAnd {
  template <class V>
  __device__ static V apply(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct BitOr {
  template <class V>
  __device__ static V apply(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct BitXor {
  template <class V>
  __device__ static V apply(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};

// Calls visitor(Op{}) with the op that serves `op` on elements of T, a type of visit_dtype. `is_bool`: logic on bytes
// of 0 and 1. Only for what can_reduce() allows.
template <class T, class Visitor>
auto visit_op(ReduceOp op, bool is_bool, Visitor&& visitor) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBand) return visitor(BitAnd{});
    if (op == ReduceOp::kBor) return visitor(BitOr{});
    if (op == ReduceOp::kBxor) return visitor(BitXor{});
  }
  switch (op) {
    case ReduceOp::kMin:
      return visitor(Min{});
    case ReduceOp::kMax:
      return visitor(Max{});
    case ReduceOp::kProduct:
      return is_bool ? visitor(Min{}) : visitor(Product{});
    default:
      return is_bool ? visitor(Max{}) : visitor(Sum{});
  }
}

}  // namespace ringdp::gpu
