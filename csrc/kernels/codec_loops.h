// The source of all codec kernels; kernels_<instruction set>.cc compiles it with its own Isa (see vectors.h).
//
// No intermediate value is a subnormal float that matters, so flush-to-zero modes change no decoded bit.
#pragma once
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/vectors.h"

namespace ringdp::kernels {

// Whole numbers from -127 to 127.
template <class Isa>
struct Int8Code {
  using Values = typename Floats<Isa>::Values;
  using Ints = Vector<int32_t, Floats<Isa>::kLanes>;
  using Byte = int8_t;
  static constexpr float kLargest = 127;
  static constexpr float kSmallest = 1;

  static Ints encode(Values value) {
    // Added to 1.5 * 2^23, whose last bit is worth 1, a value is rounded by the adder.
    constexpr float kAligned = 0x1.8p23f;
    return __builtin_bit_cast(Ints, value + kAligned) - __builtin_bit_cast(int32_t, kAligned);
  }
  static Values decode(Ints code) { return __builtin_convertvector(code, Values); }
};

template <class Isa>
struct Int4Code : Int8Code<Isa> {
  static constexpr float kLargest = 7;
};

// e4m3fn by integer arithmetic: sign, exponent with bias 7, fraction; 0x7f (NaN) is never produced, because the scale
// is NaN then.
template <class Isa>
struct Fp8Code {
  using Values = typename Floats<Isa>::Values;
  using Ints = Vector<int32_t, Floats<Isa>::kLanes>;
  using Byte = uint8_t;
  static constexpr float kLargest = 448;
  static constexpr float kSmallest = 0x1p-9f;
  static constexpr int32_t kSmallestNormal = 121 << 23;  // 2^-6 as float
  static constexpr int32_t kRebias = 120 << 23;

  static Ints encode(Values value) {
    const Ints bits = __builtin_bit_cast(Ints, value);
    const Ints sign = (bits >> 24) & 0x80, magnitude = bits & 0x7fffffff;
    // Added to 2^14, whose last bit is worth 2^-9, a small magnitude is rounded by the adder.
    constexpr float kAligned = 0x1p14f;
    const Ints aligned = __builtin_bit_cast(Ints, __builtin_bit_cast(Values, magnitude) + kAligned);
    const Ints subnormal = aligned - __builtin_bit_cast(int32_t, kAligned);
    const Ints normal = (magnitude - kRebias + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    return sign | (magnitude < kSmallestNormal ? subnormal : normal);
  }
  static Values decode(Ints code) {
    const Ints sign = (code & 0x80) << 24, magnitude = (code & 0x7f) << 20;
    // A subnormal m * 2^-9 is (1 + m * 2^-3) * 2^-6 - 2^-6, and that difference is exact.
    const Values one_up = __builtin_bit_cast(Values, magnitude + kSmallestNormal);
    const Ints subnormal = __builtin_bit_cast(Ints, one_up - __builtin_bit_cast(float, kSmallestNormal));
    return __builtin_bit_cast(Values, sign | (magnitude < (1 << 23) ? subnormal : magnitude + kRebias));
  }
};

template <class Isa>
struct CodecLoops {
  static constexpr int kLanes = Floats<Isa>::kLanes;
  using Values = typename Floats<Isa>::Values;
  using Ints = Vector<int32_t, kLanes>;

  template <class Pack, class T>
  static Pack load(const T* from) {
    return Memory<Isa, Pack>::load(reinterpret_cast<const char*>(from));
  }
  template <class Pack, class T>
  static void store(T* to, Pack pack) {
    Memory<Isa, Pack>::store(reinterpret_cast<char*>(to), pack);
  }

  template <class T>
  static void widen_as(const std::byte* elements, float* block) {
    using E = Element<Isa, T>;
    for (int64_t i = 0; i < kWireBlock; i += kLanes) {
      store(block + i, E::widen(load<typename E::Pack>(elements + i * sizeof(T))));
    }
  }
  template <class T>
  static void narrow_as(const float* block, std::byte* elements) {
    using E = Element<Isa, T>;
    for (int64_t i = 0; i < kWireBlock; i += kLanes) {
      store(elements + i * sizeof(T), E::round(one_nan(load<Values>(block + i))));
    }
  }

  static Values one_nan(Values v) { return v == v ? v : Values{} + std::numeric_limits<float>::quiet_NaN(); }

  static void widen(DType dtype, const std::byte* elements, float* block) {
    if (dtype == DType::kF16) return widen_as<Half>(elements, block);
    if (dtype == DType::kBF16) return widen_as<BFloat16>(elements, block);
    if (dtype == DType::kF32) return static_cast<void>(std::memcpy(block, elements, kWireBlock * sizeof(float)));
    double values[kWireBlock];
    std::memcpy(values, elements, sizeof values);
    for (int64_t i = 0; i < kWireBlock; ++i) block[i] = static_cast<float>(values[i]);
  }

  static void narrow(DType dtype, const float* block, std::byte* elements) {
    if (dtype == DType::kF16) return narrow_as<Half>(block, elements);
    if (dtype == DType::kBF16) return narrow_as<BFloat16>(block, elements);
    if (dtype == DType::kF32) return static_cast<void>(std::memcpy(elements, block, kWireBlock * sizeof(float)));
    double values[kWireBlock];
    for (int64_t i = 0; i < kWireBlock; ++i) values[i] = block[i];
    std::memcpy(elements, values, sizeof values);
  }

  // As an integer, in which infinities and NaN are larger than every number.
  static int32_t largest_magnitude(const float* block) {
    Ints largest{};
    for (int64_t i = 0; i < kWireBlock; i += kLanes) {
      const Ints magnitude = load<Ints>(block + i) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    int32_t result = 0;
    for (int lane = 0; lane < kLanes; ++lane) result = largest[lane] > result ? largest[lane] : result;
    return result;
  }

  template <class Code>
  static float scale_for(float largest) {
    constexpr float kFloor = std::numeric_limits<float>::min() / Code::kSmallest;
    constexpr float kCeiling = std::numeric_limits<float>::max() / Code::kLargest * (1 - 0x1p-23f);
    static_assert(double{kCeiling} * Code::kLargest <= std::numeric_limits<float>::max());
    const float scale = largest / Code::kLargest;
    return scale < kFloor ? kFloor : scale > kCeiling ? kCeiling : scale;
  }

  static float power_above(float scale) {
    return __builtin_bit_cast(float, (__builtin_bit_cast(int32_t, scale) + 0x7fffff) & 0x7f800000);
  }

  // A few vectors at a time, because most blocks fail in the first.
  template <class Code>
  static bool is_exact(const float* block, float scale) {
    constexpr int64_t kLook = 64;
    for (int64_t begin = 0; begin < kWireBlock; begin += kLook) {
      Ints differing{};
      for (int64_t i = begin; i < begin + kLook; i += kLanes) {
        const Values value = load<Values>(block + i);
        differing |= Code::decode(Code::encode(value / scale)) * scale != value;
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        if (differing[lane] != 0) return false;
      }
    }
    return true;
  }

  template <class Code>
  static void encode_scaled(const float* block, std::byte* encoded) {
    constexpr int32_t kInfinity = 0x7f800000;
    const int32_t largest = largest_magnitude(block);
    std::byte* const codes = encoded + sizeof(float);
    if (largest >= kInfinity) {
      store(encoded, std::numeric_limits<float>::quiet_NaN());
      std::memset(codes, 0, kWireBlock);
      return;
    }
    float scale = scale_for<Code>(__builtin_bit_cast(float, largest));
    if (is_exact<Code>(block, power_above(scale))) scale = power_above(scale);
    store(encoded, scale);
    for (int64_t i = 0; i < kWireBlock; i += kLanes) {
      using Bytes = Vector<typename Code::Byte, kLanes>;
      store(codes + i, __builtin_convertvector(Code::encode(load<Values>(block + i) / scale), Bytes));
    }
  }

  template <class Code>
  static void decode_scaled(const std::byte* encoded, float* block) {
    const float scale = load<float>(encoded);
    const std::byte* const codes = encoded + sizeof(float);
    for (int64_t i = 0; i < kWireBlock; i += kLanes) {
      using Bytes = Vector<typename Code::Byte, kLanes>;
      store(block + i, Code::decode(__builtin_convertvector(load<Bytes>(codes + i), Ints)) * scale);
    }
  }

  static void encode(WireType wire, const float* block, std::byte* encoded) {
    switch (wire) {
      case WireType::kBf16:
        return narrow_as<BFloat16>(block, encoded);
      case WireType::kFp16:
        return narrow_as<Half>(block, encoded);
      case WireType::kFp8:
        return encode_scaled<Fp8Code<Isa>>(block, encoded);
      case WireType::kInt8:
        return encode_scaled<Int8Code<Isa>>(block, encoded);
      case WireType::kFp32:
        break;  // refused before
    }
  }

  static void decode(WireType wire, const std::byte* encoded, float* block) {
    switch (wire) {
      case WireType::kBf16:
        return widen_as<BFloat16>(encoded, block);
      case WireType::kFp16:
        return widen_as<Half>(encoded, block);
      case WireType::kFp8:
        return decode_scaled<Fp8Code<Isa>>(encoded, block);
      case WireType::kInt8:
        return decode_scaled<Int8Code<Isa>>(encoded, block);
      case WireType::kFp32:
        break;
    }
  }

  static void encode_int4(const float* block, std::byte* encoded) {
    int8_t wide[sizeof(float) + kWireBlock];
    encode_scaled<Int4Code<Isa>>(block, reinterpret_cast<std::byte*>(wide));
    std::memcpy(encoded, wide, sizeof(float));
    const int8_t* const codes = wide + sizeof(float);
    std::byte* const pairs = encoded + sizeof(float);
    for (int64_t i = 0; i < kWireBlock / 2; ++i) {
      pairs[i] = static_cast<std::byte>((codes[2 * i] + 8) | (codes[2 * i + 1] + 8) << 4);
    }
  }

  static void decode_int4(const std::byte* encoded, float* block) {
    int8_t wide[sizeof(float) + kWireBlock];
    std::memcpy(wide, encoded, sizeof(float));
    int8_t* const codes = wide + sizeof(float);
    const auto* const pairs = reinterpret_cast<const uint8_t*>(encoded) + sizeof(float);
    for (int64_t i = 0; i < kWireBlock / 2; ++i) {
      codes[2 * i] = static_cast<int8_t>((pairs[i] & 15) - 8);
      codes[2 * i + 1] = static_cast<int8_t>((pairs[i] >> 4) - 8);
    }
    decode_scaled<Int4Code<Isa>>(reinterpret_cast<const std::byte*>(wide), block);
  }

  static void encode_sign(const float* block, std::byte* encoded) {
    alignas(64) float sums[kSignBlock];
    int32_t others = 0;  // than 0
    for (int64_t i = 0; i < kSignBlock; ++i) {
      sums[i] = __builtin_fabsf(block[i]);
      others += block[i] != 0;
    }
    for (int64_t half = kSignBlock / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    float scale = sums[0] / static_cast<float>(others > 0 ? others : 1);
    if (!(scale <= std::numeric_limits<float>::max())) scale = std::numeric_limits<float>::quiet_NaN();
    if (scale < std::numeric_limits<float>::min()) scale = 0;
    store(encoded, scale);
    auto* const bits = reinterpret_cast<uint8_t*>(encoded) + sizeof(float);
    for (int64_t i = 0; i < kSignBlock / 8; ++i) {
      uint8_t byte = 0;
      for (int k = 0; k < 8; ++k) byte |= static_cast<uint8_t>((block[8 * i + k] >= 0) << k);
      bits[i] = byte;
    }
  }

  static void decode_sign(const std::byte* encoded, float* block) {
    const float scale = load<float>(encoded);
    const auto* const bits = reinterpret_cast<const uint8_t*>(encoded) + sizeof(float);
    for (int64_t i = 0; i < kSignBlock; ++i) block[i] = (bits[i / 8] >> (i % 8) & 1) != 0 ? scale : -scale;
  }

  static void encode_code(Code code, const float* block, std::byte* encoded) {
    switch (code) {
      case Code::kInt8:
        return encode_scaled<Int8Code<Isa>>(block, encoded);
      case Code::kFp8:
        return encode_scaled<Fp8Code<Isa>>(block, encoded);
      case Code::kInt4:
        return encode_int4(block, encoded);
      case Code::kSign:
        return encode_sign(block, encoded);
    }
  }

  static void decode_code(Code code, const std::byte* encoded, float* block) {
    switch (code) {
      case Code::kInt8:
        return decode_scaled<Int8Code<Isa>>(encoded, block);
      case Code::kFp8:
        return decode_scaled<Fp8Code<Isa>>(encoded, block);
      case Code::kInt4:
        return decode_int4(encoded, block);
      case Code::kSign:
        return decode_sign(encoded, block);
    }
  }

  static constexpr Codec kCodec{&widen, &narrow, &encode, &decode, &encode_code, &decode_code};
};

}  // namespace ringdp::kernels
