// The source of all fold kernels; kernels_<instruction set>.cc compiles it with its own Isa (see vectors.h).
#pragma once
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/dispatch.h"
#include "kernels/vectors.h"

namespace ringdp::kernels {

template <class Isa>
struct Sum {
  template <class V>
  static V apply(V a, V b) {
    return a + b;
  }
};
template <class Isa>
struct Product {
  template <class V>
  static V apply(V a, V b) {
    return a * b;
  }
};
// `b != b` lets a NaN of b in; a NaN of a stays, because it compares false.
template <class Isa>
struct Min {
  template <class V>
  static V apply(V a, V b) {
    return b < a ? b : (b != b ? b : a);
  }
};
template <class Isa>
struct Max {
  template <class V>
  static V apply(V a, V b) {
    return b > a ? b : (b != b ? b : a);
  }
};

template <class Isa>
struct BitAnd {
  template <class V>
  static V apply(V a, V b) {
    return a & b;
  }
};
template <class Isa>
struct BitOr {
  template <class V>
  static V apply(V a, V b) {
    return a | b;
  }
};
template <class Isa>
struct BitXor {
  template <class V>
  static V apply(V a, V b) {
    return a ^ b;
  }
};

template <class Isa, class T, class Op, bool kWideSrc, bool kWideDst, bool kDivide>
struct Loop {
  using E = Element<Isa, T>;
  using Wide = typename E::Wide;
  using WidePack = typename E::WidePack;
  using FirstPack = std::conditional_t<kWideSrc, WidePack, typename E::Pack>;
  using DstPack = std::conditional_t<kWideDst, WidePack, typename E::Pack>;

  static WidePack first(const char* src, int64_t i) {
    const FirstPack pack = Memory<Isa, FirstPack>::load(src + i * (sizeof(FirstPack) / E::kLanes));
    if constexpr (kWideSrc) {
      return pack;
    } else {
      return E::widen(pack);
    }
  }

  static WidePack next(const char* src, int64_t i) {
    return E::widen(Memory<Isa, typename E::Pack>::load(src + i * (sizeof(typename E::Pack) / E::kLanes)));
  }

  static DstPack finish(WidePack sum, Wide divisor) {
    if constexpr (kDivide) sum = sum / divisor;
    // Which of two NaNs an addition returns depends on operand order, which compilers are free to swap.
    if constexpr (std::is_floating_point_v<Wide>) {
      sum = sum == sum ? sum : WidePack{} + std::numeric_limits<Wide>::quiet_NaN();
    }
    if constexpr (kWideDst) {
      return sum;
    } else {
      return E::round(sum);
    }
  }

  template <size_t... kNext, size_t... kDst>
  static void run(const void* const* srcs, void* const* dsts, int64_t count, double divisor,
                  std::index_sequence<kNext...>, std::index_sequence<kDst...>) {
    // Copies of the pointers: a store through dst could change the caller's array for all the compiler knows.
    const char* const src0 = static_cast<const char*>(srcs[0]);
    [[maybe_unused]] const char* const others[] = {static_cast<const char*>(srcs[kNext + 1])..., nullptr};
    char* const results[] = {static_cast<char*>(dsts[kDst])...};
    const Wide by = static_cast<Wide>(divisor);
    for (int64_t i = 0; i < count; i += E::kLanes) {
      WidePack sum = first(src0, i);
      ((sum = Op::apply(sum, next(others[kNext], i))), ...);
      const DstPack result = finish(sum, by);
      const int64_t to = i * (sizeof(DstPack) / E::kLanes);
      (Memory<Isa, DstPack>::store(results[kDst] + to, result), ...);
    }
  }

  template <int kSrcs, int kDsts>
  static void kernel(const void* const* srcs, void* const* dsts, int64_t count, double divisor) {
    run(srcs, dsts, count, divisor, std::make_index_sequence<kSrcs - 1>(), std::make_index_sequence<kDsts>());
  }

  template <int kDsts, size_t... kIndex>
  static Kernel pick_among(int n_srcs, std::index_sequence<kIndex...>) {
    static constexpr Kernel kKernels[] = {&kernel<kIndex + 1, kDsts>...};
    return kKernels[n_srcs - 1];
  }

  template <size_t... kIndex>
  static Kernel pick_to_all(int n_srcs, std::index_sequence<kIndex...>) {
    static constexpr Kernel kKernels[] = {&kernel<kIndex + 1, kIndex + 1>...};
    return kKernels[n_srcs - 1];
  }
};

template <class Isa>
struct Picker {
  template <class T, class Op, bool kWideSrc, bool kWideDst, bool kDivide, bool kIsSum>
  static Kernel by_number(const KernelKey& key) {
    using L = Loop<Isa, T, Op, kWideSrc, kWideDst, kDivide>;
    constexpr ReduceOp kOp = kIsSum ? ReduceOp::kSum : ReduceOp::kMin;
    constexpr std::make_index_sequence<max_kernel_srcs(kOp)> kSrcs{};
    if constexpr (kIsSum && !kWideSrc && !kWideDst) {
      if (key.n_dsts > 2) return L::pick_to_all(key.n_srcs, std::make_index_sequence<kMaxToAll>{});
    }
    if constexpr (kIsSum) {
      if (key.n_dsts == 2) return L::template pick_among<2>(key.n_srcs, kSrcs);
    }
    return L::template pick_among<1>(key.n_srcs, kSrcs);
  }

  template <class T, class Op, bool kWideSrc, bool kWideDst>
  static Kernel by_division(const KernelKey& key) {
    constexpr bool kIsSum = std::is_same_v<Op, Sum<Isa>>;
    if constexpr (std::is_floating_point_v<typename Element<Isa, T>::Wide>) {
      if (key.divide) return by_number<T, Op, kWideSrc, kWideDst, true, kIsSum>(key);
    }
    return by_number<T, Op, kWideSrc, kWideDst, false, kIsSum>(key);
  }

  template <class T, class Op>
  static Kernel by_width(const KernelKey& key) {
    if constexpr (!std::is_same_v<T, typename Element<Isa, T>::Wide>) {
      if (key.wide_src && key.wide_dst) return by_division<T, Op, true, true>(key);
      if (key.wide_src) return by_division<T, Op, true, false>(key);
      if (key.wide_dst) return by_division<T, Op, false, true>(key);
    }
    return by_division<T, Op, false, false>(key);
  }

  // Wrapping sums and products have the same bits signed and unsigned; unsigned ones are defined in C++.
  template <class T, class Wrapping>
  static Kernel by_op(const KernelKey& key) {
    if constexpr (std::is_integral_v<Wrapping>) {
      if (key.op == ReduceOp::kBand) return by_width<Wrapping, BitAnd<Isa>>(key);
      if (key.op == ReduceOp::kBor) return by_width<Wrapping, BitOr<Isa>>(key);
      if (key.op == ReduceOp::kBxor) return by_width<Wrapping, BitXor<Isa>>(key);
    }
    switch (key.op) {
      case ReduceOp::kMin:
        return by_width<T, Min<Isa>>(key);
      case ReduceOp::kMax:
        return by_width<T, Max<Isa>>(key);
      case ReduceOp::kProduct:
        return by_width<Wrapping, Product<Isa>>(key);
      default:
        return by_width<Wrapping, Sum<Isa>>(key);
    }
  }

  // Not visit_dtype: its instantiations must not be compiled for an instruction set and shared.
  static Kernel pick(const KernelKey& key) {
    switch (key.dtype) {
      case DType::kU8:
        return by_op<uint8_t, uint8_t>(key);
      case DType::kI8:
        return by_op<int8_t, uint8_t>(key);
      case DType::kU16:
        return by_op<uint16_t, uint16_t>(key);
      case DType::kI16:
        return by_op<int16_t, uint16_t>(key);
      case DType::kU32:
        return by_op<uint32_t, uint32_t>(key);
      case DType::kI32:
        return by_op<int32_t, uint32_t>(key);
      case DType::kU64:
        return by_op<uint64_t, uint64_t>(key);
      case DType::kI64:
        return by_op<int64_t, uint64_t>(key);
      case DType::kF16:
        return by_op<Half, Half>(key);
      case DType::kBF16:
        return by_op<BFloat16, BFloat16>(key);
      case DType::kF64:
        return by_op<double, double>(key);
      default:
        break;
    }
    return by_op<float, float>(key);
  }
};

// Perfect trees of additions of kSrcs sources, for fold_tree.
template <class Isa, class T, bool kWideSrc, bool kWideDst, bool kDivide>
struct TreeLoop : Loop<Isa, T, Sum<Isa>, kWideSrc, kWideDst, kDivide> {
  using Base = Loop<Isa, T, Sum<Isa>, kWideSrc, kWideDst, kDivide>;
  using WidePack = typename Base::WidePack;

  template <size_t kSrcs>
  [[gnu::always_inline]] static WidePack sum(const char* const* srcs, int64_t i) {
    if constexpr (kSrcs == 1) {
      return Base::first(*srcs, i);
    } else {
      return sum<kSrcs / 2>(srcs, i) + sum<kSrcs / 2>(srcs + kSrcs / 2, i);
    }
  }

  template <size_t kSrcs, size_t kDsts>
  static void kernel(const void* const* given, void* const* to, int64_t count, double divisor) {
    const char* srcs[kSrcs];
    char* dsts[kDsts];
    for (size_t k = 0; k < kSrcs; ++k) srcs[k] = static_cast<const char*>(given[k]);
    for (size_t k = 0; k < kDsts; ++k) dsts[k] = static_cast<char*>(to[k]);
    const auto by = static_cast<typename Base::Wide>(divisor);
    for (int64_t i = 0; i < count; i += Base::E::kLanes) {
      const auto result = Base::finish(sum<kSrcs>(srcs, i), by);
      for (char* const dst : dsts) {
        Memory<Isa, typename Base::DstPack>::store(dst + i * (sizeof result / Base::E::kLanes), result);
      }
    }
  }

  template <size_t kSrcs>
  static Kernel by_destinations(int n_dsts) {
    if constexpr (!kWideSrc && !kWideDst) {
      if (n_dsts > 2) return &kernel<kSrcs, kSrcs>;
    }
    return n_dsts == 2 ? &kernel<kSrcs, 2> : &kernel<kSrcs, 1>;
  }

  static Kernel by_number(const KernelKey& key) {
    if (key.n_srcs == 2) return by_destinations<2>(key.n_dsts);
    if (key.n_srcs == 4) return by_destinations<4>(key.n_dsts);
    return key.n_srcs == 8 ? by_destinations<8>(key.n_dsts) : by_destinations<kMaxTreeSrcs>(key.n_dsts);
  }
};

template <class Isa>
struct TreePicker {
  template <class T, bool kWideSrc, bool kWideDst>
  static Kernel by_division(const KernelKey& key) {
    return key.divide ? TreeLoop<Isa, T, kWideSrc, kWideDst, true>::by_number(key)
                      : TreeLoop<Isa, T, kWideSrc, kWideDst, false>::by_number(key);
  }

  template <class T>
  static Kernel by_width(const KernelKey& key) {
    if (key.wide_src && key.wide_dst) return by_division<T, true, true>(key);
    if (key.wide_src) return by_division<T, true, false>(key);
    return key.wide_dst ? by_division<T, false, true>(key) : by_division<T, false, false>(key);
  }

  static Kernel pick(const KernelKey& key) {
    if (key.dtype == DType::kF16) return by_width<Half>(key);
    if (key.dtype == DType::kBF16) return by_width<BFloat16>(key);
    return key.dtype == DType::kF64 ? by_division<double, false, false>(key) : by_division<float, false, false>(key);
  }
};

}  // namespace ringdp::kernels
