// What two elements become under a reduce op, and which op and type serve a dtype: the rules of kernels/fold.h.
#pragma once
#include <type_traits>

#include "base/dtype.h"

namespace ringdp::gpu {

// Small integers are promoted to int, in which the product of two uint16_t overflows: they are computed as uint64_t.
template <class V>
using Computed = typename std::conditional_t<std::is_integral_v<V>, TypeTag<uint64_t>, TypeTag<V>>::type;

struct Sum {
  template <class V>
  __device__ static V apply(V a, V b) { return static_cast<V>(Computed<V>(a) + Computed<V>(b)); }
};
struct Product {
  template <class V>
  __device__ static V apply(V a, V b) { return static_cast<V>(Computed<V>(a) * Computed<V>(b)); }
};
// `b != b` lets a NaN of b in; a NaN of a stays, because it compares false. The earlier of two equal values is kept.
struct Min {
  template <class V>
  __device__ static V apply(V a, V b) { return b < a || b != b ? b : a; }
};
struct Max {
  template <class V>
  __device__ static V apply(V a, V b) { return b > a || b != b ? b : a; }
};
struct BitAnd {
  template <class V>
  __device__ static V apply(V a, V b) { return static_cast<V>(a & b); }
};
struct BitOr {
  template <class V>
  __device__ static V apply(V a, V b) { return static_cast<V>(a | b); }
};
struct BitXor {
  template <class V>
  __device__ static V apply(V a, V b) { return static_cast<V>(a ^ b); }
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
    case ReduceOp::kMin: return visitor(Min{});
    case ReduceOp::kMax: return visitor(Max{});
    case ReduceOp::kProduct: return is_bool ? visitor(Min{}) : visitor(Product{});
    default: return is_bool ? visitor(Max{}) : visitor(Sum{});
  }
}

}  // namespace ringdp::gpu
