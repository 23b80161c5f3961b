// Encoding and decoding, as one thread of a warp runs it; a warp shares each block of elements.
//
// The format and the bits are those of kernels/codec.h: the same operations on float32, each of which rounds once. Prim
// has, beside what device/kernel/element.h asks for, thread(), threads(), block(), blocks(), and
//   kWarp                                  threads that share a block, at most 64; divides threads()
//   largest_of_warp(v), any_of_warp(flag)  reductions over a warp (uint32_t, bool), called by all of its threads
// Elements past the end are taken as zeros, which change no scale, and nothing is written there.
#pragma once
#include <cfloat>

#include "device/kernel/element.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {

// Whole numbers from -127 to 127.
struct Int8Code {
  static constexpr float kLargest = 127, kSmallest = 1;

  __device__ static uint8_t encode(float value) {
    // Added to 1.5 * 2^23, whose last bit is worth 1, a value is rounded by the adder.
    constexpr float kAligned = 12582912.0f;
    return static_cast<uint8_t>(bits_as<uint32_t>(value + kAligned) - bits_as<uint32_t>(kAligned));
  }
  __device__ static float decode(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
};

// e4m3fn: sign, exponent with bias 7, fraction; 0x7f (NaN) is never made, the scale says it.
struct Fp8Code {
  static constexpr float kLargest = 448, kSmallest = 0.001953125f;
  static constexpr uint32_t kSmallestNormal = 121u << 23;  // 2^-6 as float
  static constexpr uint32_t kRebias = 120u << 23;

  __device__ static uint8_t encode(float value) {
    const uint32_t bits = bits_as<uint32_t>(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
    // Added to 2^14, whose last bit is worth 2^-9, a small magnitude is rounded by the adder.
    constexpr float kAligned = 16384.0f;
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + kAligned) - bits_as<uint32_t>(kAligned);
    const uint32_t normal = (magnitude - kRebias + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    return static_cast<uint8_t>(sign | (magnitude < kSmallestNormal ? subnormal : normal));
  }
  __device__ static float decode(uint8_t code) {
    const uint32_t sign = (code & 0x80u) << 24, magnitude = (code & 0x7fu) << 20;
    // A subnormal m * 2^-9 is (1 + m * 2^-3) * 2^-6 - 2^-6, and that difference is exact.
    const float one_up = bits_as<float>(magnitude + kSmallestNormal);
    const uint32_t subnormal = bits_as<uint32_t>(one_up - bits_as<float>(uint32_t{kSmallestNormal}));
    return bits_as<float>(sign | (magnitude < (1u << 23) ? subnormal : magnitude + kRebias));
  }
};

// How memory stores a number: an element of T, or a code relative to a scale.
template <class Prim, class T>
struct Plain {
  using Storage = T;
  __device__ float number(T element) const { return static_cast<float>(widen<Prim, T>(element)); }
  __device__ T storage(float value) const { return round_to<Prim, T>(with_one_nan(static_cast<Wide<T>>(value))); }
};
template <class Code>
struct Scaled {
  using Storage = uint8_t;
  float scale;
  __device__ float number(uint8_t code) const { return Code::decode(code) * scale; }
  __device__ uint8_t storage(float value) const { return Code::encode(value / scale); }
};

// What a thread loads or stores at a time.
constexpr int kFour = 4;
template <class T>
struct alignas(sizeof(T) * kFour < kPackBytes ? sizeof(T) * kFour : kPackBytes) Four {
  T of[kFour];
};

// This thread's numbers of a block: four of each row, where a row has four per thread of the warp.
template <class Prim>
struct Share {
  static constexpr int kRows = static_cast<int>(kWireBlock) / (kFour * Prim::kWarp);
  float of[kRows][kFour];

  __device__ static int64_t place(int row) {
    return kFour * (int64_t{row} * Prim::kWarp + Prim::thread() % Prim::kWarp);
  }
};

// Of a block's first `end` elements.
template <class Prim, class Format>
__device__ Share<Prim> load_share(const Format& format, const char* block, int64_t end) {
  using T = typename Format::Storage;
  const void* const start = block;
  Share<Prim> share{};
  for (int row = 0; row < Share<Prim>::kRows; ++row) {
    const int64_t at = Share<Prim>::place(row);
    Four<T> four{};
    if (at + kFour <= end) four = static_cast<const Four<T>*>(start)[at / kFour];
    for (int i = 0; i < kFour; ++i) {
      if (at + kFour > end && at + i < end) four.of[i] = static_cast<const T*>(start)[at + i];
      share.of[row][i] = at + i < end ? format.number(four.of[i]) : 0.0f;
    }
  }
  return share;
}

template <class Prim, class Format>
__device__ void store_share(const Format& format, const Share<Prim>& share, char* block, int64_t end) {
  using T = typename Format::Storage;
  void* const start = block;
  for (int row = 0; row < Share<Prim>::kRows; ++row) {
    const int64_t at = Share<Prim>::place(row);
    Four<T> four{};
    for (int i = 0; i < kFour; ++i) {
      four.of[i] = format.storage(share.of[row][i]);
      if (at + kFour > end && at + i < end) static_cast<T*>(start)[at + i] = four.of[i];
    }
    if (at + kFour <= end) static_cast<Four<T>*>(start)[at / kFour] = four;
  }
}

// As an integer that orders infinities and NaN above every number.
template <class Prim>
__device__ uint32_t largest_magnitude(const Share<Prim>& share) {
  uint32_t largest = 0;
  for (int row = 0; row < Share<Prim>::kRows; ++row) {
    for (int i = 0; i < kFour; ++i) {
      const uint32_t magnitude = bits_as<uint32_t>(share.of[row][i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return Prim::largest_of_warp(largest);
}

template <class Code>
__device__ float scale_for(float largest) {
  constexpr float kFloor = FLT_MIN / Code::kSmallest, kCeiling = FLT_MAX / Code::kLargest * (1 - FLT_EPSILON);
  const float scale = largest / Code::kLargest;
  return scale < kFloor ? kFloor : scale > kCeiling ? kCeiling : scale;
}

__device__ inline float power_above(float scale) {
  return bits_as<float>((bits_as<uint32_t>(scale) + 0x7fffffu) & 0x7f800000u);
}

// Whether encoding the block with this scale is exact.
template <class Prim, class Code>
__device__ bool is_exact(const Share<Prim>& share, float scale) {
  const Scaled<Code> format = {scale};
  bool differs = false;
  for (int row = 0; row < Share<Prim>::kRows; ++row) {
    for (int i = 0; i < kFour; ++i) {
      const float value = share.of[row][i];
      differs = differs || format.number(format.storage(value)) != value;
    }
  }
  return !Prim::any_of_warp(differs);
}

template <class Prim, class Code>
__device__ float scale_of(const Share<Prim>& share) {
  const uint32_t largest = largest_magnitude(share);
  if (largest >= 0x7f800000u) return bits_as<float>(0x7fc00000u);
  const float scale = scale_for<Code>(bits_as<float>(largest)), above = power_above(scale);
  return is_exact<Prim, Code>(share, above) ? above : scale;
}

constexpr int64_t kScaleBytes = sizeof(float);

template <class Prim, class Code>
__device__ void encode_scaled(const Share<Prim>& share, char* block, int64_t end) {
  const float scale = scale_of<Prim, Code>(share);
  void* const start = block;
  if (Prim::thread() % Prim::kWarp == 0) *static_cast<float*>(start) = scale;
  if (scale == scale) return store_share<Prim>(Scaled<Code>{scale}, share, block + kScaleBytes, end);
  store_share<Prim>(Scaled<Code>{1}, Share<Prim>{}, block + kScaleBytes, end);
}

template <class Prim, class Code>
__device__ Share<Prim> decode_scaled(const char* block, int64_t end) {
  const void* const start = block;
  return load_share<Prim>(Scaled<Code>{*static_cast<const float*>(start)}, block + kScaleBytes, end);
}

// Of a whole one; a short one is the last.
__device__ inline int64_t block_bytes(WireType wire) {
  const bool scaled = wire == WireType::kFp8 || wire == WireType::kInt8;
  return scaled ? kScaleBytes + kWireBlock : kWireBlock * static_cast<int64_t>(sizeof(uint16_t));
}

template <class Prim>
__device__ void encode_block(WireType wire, const Share<Prim>& share, char* block, int64_t end) {
  switch (wire) {
    case WireType::kBf16:
      return store_share<Prim>(Plain<Prim, BFloat16>{}, share, block, end);
    case WireType::kFp16:
      return store_share<Prim>(Plain<Prim, Half>{}, share, block, end);
    case WireType::kFp8:
      return encode_scaled<Prim, Fp8Code>(share, block, end);
    default:
      return encode_scaled<Prim, Int8Code>(share, block, end);
  }
}

template <class Prim>
__device__ Share<Prim> decode_block(WireType wire, const char* block, int64_t end) {
  switch (wire) {
    case WireType::kBf16:
      return load_share<Prim>(Plain<Prim, BFloat16>{}, block, end);
    case WireType::kFp16:
      return load_share<Prim>(Plain<Prim, Half>{}, block, end);
    case WireType::kFp8:
      return decode_scaled<Prim, Fp8Code>(block, end);
    default:
      return decode_scaled<Prim, Int8Code>(block, end);
  }
}

// T: the storage type of work.element.
template <class Prim, class T, bool kEncodes>
__device__ void run_codec(const CodecWork& work) {
  const Plain<Prim, T> format;
  const int64_t wire_bytes = block_bytes(work.wire), raw_bytes = kWireBlock * static_cast<int64_t>(sizeof(T));
  const int64_t warps = int64_t{Prim::blocks()} * Prim::threads() / Prim::kWarp;
  const int64_t self = (int64_t{Prim::block()} * Prim::threads() + Prim::thread()) / Prim::kWarp;
  for (int64_t b = self; b * kWireBlock < work.count; b += warps) {
    const int64_t end = work.count - b * kWireBlock < kWireBlock ? work.count - b * kWireBlock : kWireBlock;
    if (kEncodes) {
      const int64_t held = work.held - b * kWireBlock;
      const Share<Prim> share = load_share<Prim>(format, work.from + b * raw_bytes, held < end ? held : end);
      encode_block<Prim>(work.wire, share, work.to + b * wire_bytes, end);
    } else {
      const Share<Prim> share = decode_block<Prim>(work.wire, work.from + b * wire_bytes, end);
      store_share<Prim>(format, share, work.to + b * raw_bytes, end);
    }
  }
}

}  // namespace ringdp::gpu
