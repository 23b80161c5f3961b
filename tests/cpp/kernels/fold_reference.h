// What fold must give, one element at a time, and calls of fold on generated buffers that are compared with it, bit for
// bit.
//
// Conversions of 16-bit floats are written from the definition of the formats (ldexp, nearbyint), so they share
// nothing with the bit tricks and instructions under test.
// Buffers start one element past an aligned address and end at the end of their allocation, so vectors are
// unaligned and AddressSanitizer sees an access outside.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/dispatch.h"

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
T widen(T x) {
  return x;
}

inline void narrow(float x, Half& to) { to.bits = encode(kHalfFormat, x); }
inline void narrow(float x, BFloat16& to) { to.bits = encode(kBFloat16Format, x); }
template <class T>
void narrow(T x, T& to) {
  to = x;
}

inline bool adds(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum; }

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

struct FoldCase {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int n_srcs = 2;
  int64_t count = 0;
  int n_dsts = 1;
  int first_alias = -1;  // dst k is src (first_alias + k), while there are sources; -1: all dsts are separate
  bool wide_src = false, wide_dst = false;
  double divisor = 0;

  std::string text() const {
    std::ostringstream out;
    out << name_of(dtype) << ' ' << name_of(op) << " of " << n_srcs << " x " << count << " into " << n_dsts
        << ", first alias " << first_alias << (wide_src ? ", wide src" : "") << (wide_dst ? ", wide dst" : "")
        << ", divisor " << divisor;
    return out.str();
  }
};

class Buffer {
 public:
  Buffer(int64_t count, int64_t size) : offset_(size), bytes_(count * size), memory_(new char[offset_ + bytes_]) {}
  char* data() { return memory_.get() + offset_; }
  int64_t bytes() const { return bytes_; }
  std::string content() { return std::string(data(), bytes_); }

 private:
  int64_t offset_, bytes_;
  std::unique_ptr<char[]> memory_;
};

// A third each: any bits, values near 1, and the corners of the type.
template <class T>
T draw(std::mt19937_64& random) {
  T value;
  const uint64_t bits = random();
  std::memcpy(&value, &bits, sizeof(T));
  if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    static constexpr T kCorners[] = {T(0),          -T(0),          Limits::infinity(), -Limits::infinity(),
                                     Limits::min(), Limits::max(),  -Limits::max(),     Limits::denorm_min(),
                                     T(65504),      T(65520),       T(5.9604645e-08),   Limits::quiet_NaN(),
                                     T(1),          -T(6.1035e-05), T(1.00390625),      -Limits::denorm_min()};
    const uint64_t kind = random() % 6;
    if (kind < 3) value = T(std::uniform_real_distribution<double>(-2, 2)(random));
    if (kind == 3) value = kCorners[random() % std::size(kCorners)];
  }
  return value;
}
template <class T>
void draw_into(std::mt19937_64& random, T& value) {
  value = draw<T>(random);
}
inline void draw_into(std::mt19937_64& random, Half& value) {
  random() % 2 ? narrow(draw<float>(random), value) : void(value.bits = uint16_t(random()));
}
inline void draw_into(std::mt19937_64& random, BFloat16& value) {
  random() % 2 ? narrow(draw<float>(random), value) : void(value.bits = uint16_t(random()));
}

inline void fill(std::mt19937_64& random, DType dtype, Buffer& buffer) {
  visit_dtype(dtype, [&](auto tag) {
    typename decltype(tag)::type value;
    for (int64_t at = 0; at < buffer.bytes(); at += sizeof(value)) {
      draw_into(random, value);
      std::memcpy(buffer.data() + at, &value, sizeof(value));
    }
  });
}

inline bool is_copy(const FoldCase& c) {
  return c.n_srcs == 1 && c.divisor == 0 && (c.wide_src == c.wide_dst || wide_of(c.dtype) == c.dtype);
}

// Index of the first element that differs, -1 when there is none.
inline int64_t first_difference(const std::string& got, const std::string& want, int64_t size) {
  for (size_t at = 0; at < want.size(); ++at) {
    if (got[at] != want[at]) return int64_t(at) / size;
  }
  return -1;
}

// The buffers of a case, and the arguments that point into them.
class Call {
 public:
  explicit Call(const FoldCase& c) : c_(c), dst_size_(size_of(c.wide_dst ? wide_of(c.dtype) : c.dtype)) {
    std::mt19937_64 random(c.count * 131 + c.n_srcs * 17 + static_cast<int>(c.dtype));
    for (int k = 0; k < c.n_srcs; ++k) {
      const DType type = k == 0 && c.wide_src ? wide_of(c.dtype) : c.dtype;
      srcs_.emplace_back(c.count, size_of(type));
      fill(random, type, srcs_.back());
      src_pointers_.push_back(srcs_.back().data());
    }
    for (int k = 0; k < c.n_dsts; ++k) {
      own_dsts_.emplace_back(c.count, dst_size_);
      const bool in_place = c.first_alias >= 0 && c.first_alias + k < c.n_srcs;
      dst_pointers_.push_back(in_place ? srcs_[c.first_alias + k].data() : own_dsts_.back().data());
    }
    args_.srcs = src_pointers_.data(), args_.n_srcs = c.n_srcs;
    args_.dsts = dst_pointers_.data(), args_.n_dsts = c.n_dsts;
    args_.count = c.count, args_.dtype = c.dtype, args_.op = c.op;
    args_.wide_src = c.wide_src, args_.wide_dst = c.wide_dst, args_.divisor = c.divisor;
  }

  void run_and_check(KernelPicker pick) {
    const std::string want = reference();
    std::vector<std::string> before;
    for (Buffer& src : srcs_) before.push_back(src.content());
    fold_with(pick, args_);
    for (int k = 0; k < c_.n_dsts; ++k) {
      const std::string got(static_cast<char*>(dst_pointers_[k]), c_.count * dst_size_);
      EXPECT_EQ(first_difference(got, want, dst_size_), -1) << c_.text() << ", destination " << k;
    }
    for (int k = 0; k < c_.n_srcs; ++k) {
      const bool written = c_.first_alias >= 0 && k >= c_.first_alias && k < c_.first_alias + c_.n_dsts;
      EXPECT_TRUE(written || srcs_[k].content() == before[k]) << c_.text() << ": source " << k << " changed";
    }
  }

 private:
  std::string reference() {
    if (is_copy(c_)) return srcs_[0].content();
    std::string want(c_.count * dst_size_, '\0');
    visit_dtype(c_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < c_.count; ++i) fold_element<T>(args_, i, &want[i * dst_size_]);
    });
    return want;
  }

  const FoldCase c_;
  const int64_t dst_size_;
  std::vector<Buffer> srcs_, own_dsts_;
  std::vector<const void*> src_pointers_;
  std::vector<void*> dst_pointers_;
  FoldArgs args_;
};

inline void check_case(KernelPicker pick, const FoldCase& c) { Call(c).run_and_check(pick); }

}  // namespace ringdp::kernels::testing
