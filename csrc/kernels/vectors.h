// Vector types of one instruction set, and how each element type is widened for arithmetic and rounded back.
//
// `Isa` says how many bytes a vector has and how 16-bit lanes become 32-bit ones and floats. Every file that is
// compiled for an instruction set declares its own Isa in an anonymous namespace: all that is instantiated with it
// has internal linkage, so the linker can never hand AVX code to a caller on another machine.
#pragma once
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace ringdp::kernels {

template <class T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

template <class Isa>
struct Floats {
  static constexpr int kLanes = Isa::kVectorBytes / sizeof(float);
  using Values = Vector<float, kLanes>;
  using Bits = Vector<uint32_t, kLanes>;
  using ShortBits = Vector<uint16_t, kLanes>;
};

// An element type in memory (Pack) and in arithmetic (WidePack).
template <class Isa, class T>
struct Element {
  using Wide = T;
  static constexpr int kLanes = Isa::kVectorBytes / sizeof(T);
  using Pack = Vector<T, kLanes>;
  using WidePack = Pack;
  static WidePack widen(Pack pack) { return pack; }
  static Pack round(WidePack sum) { return sum; }
};

template <class Isa>
struct Element<Isa, Half> {
  using Wide = float;
  static constexpr int kLanes = Floats<Isa>::kLanes;
  using Pack = typename Floats<Isa>::ShortBits;
  using WidePack = typename Floats<Isa>::Values;
  static WidePack widen(Pack pack) { return Isa::half_to_float(pack); }
  static Pack round(WidePack sum) { return Isa::float_to_half(sum); }
};

template <class Isa>
struct Element<Isa, BFloat16> {
  using Wide = float;
  static constexpr int kLanes = Floats<Isa>::kLanes;
  using Pack = typename Floats<Isa>::ShortBits;
  using WidePack = typename Floats<Isa>::Values;
  using Bits = typename Floats<Isa>::Bits;

  static WidePack widen(Pack pack) { return __builtin_bit_cast(WidePack, Isa::extend(pack) << 16); }

  // To nearest, ties to even. The only NaN that gets here is 0x7fc00000, whose upper half is the NaN of c10.
  static Pack round(WidePack sum) {
    const Bits bits = __builtin_bit_cast(Bits, sum);
    return Isa::truncate((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

template <class Isa, class Pack>
struct Memory {
  static Pack load(const char* from) {
    Pack pack;
    std::memcpy(&pack, from, sizeof(pack));
    return pack;
  }
  static void store(char* to, Pack pack) { std::memcpy(to, &pack, sizeof(pack)); }
};

}  // namespace ringdp::kernels
