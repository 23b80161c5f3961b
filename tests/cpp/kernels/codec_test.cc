// The codec on every instruction set against a reference; what it refuses, and which kernels it runs on.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec_reference.h"
#include "instruction_sets.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels::testing {

constexpr WireType kEncodings[] = {WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8};

inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Blocks of very different size, with zeros and values that fall exactly between two codes among them.
inline std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  float size = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kWireBlock == 0) size = std::ldexp(1.0f, static_cast<int>(random() % 240) - 130);
    const auto spread = static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000);
    values[i] = random() % 5 == 0 ? spread * size : spread * size * std::ldexp(1.0f, -static_cast<int>(random() % 12));
  }
  return values;
}

template <class Set>
class CodecSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const InstructionSet& set : supported_instruction_sets()) {
      if (set.name == std::string(Set::name())) codec_ = &set.codec;
    }
    if (codec_ == nullptr) GTEST_SKIP() << "this machine or this build has no " << Set::name();
  }
  template <class T>
  Encoded encoded(WireType wire, DType dtype, const std::vector<T>& values) {
    Encoded out(encoded_bytes(wire, values.size()) + 1, std::byte{0xA5});
    encode_with(*codec_, wire, dtype, values.data(), out.data(), values.size());
    EXPECT_EQ(out.back(), std::byte{0xA5}) << "written past the end";
    out.pop_back();
    return out;
  }
  template <class T>
  std::vector<T> decoded(WireType wire, DType dtype, const Encoded& bytes, int64_t count) {
    std::vector<T> out(count + 1, T(77));
    decode_with(*codec_, wire, dtype, bytes.data(), out.data(), count);
    EXPECT_EQ(out.back(), T(77)) << "written past the end";
    out.pop_back();
    return out;
  }
  std::vector<float> round_trip(WireType wire, const std::vector<float>& values) {
    const auto count = static_cast<int64_t>(values.size());
    return decoded<float>(wire, DType::kF32, encoded(wire, DType::kF32, values), count);
  }
  // Both ways against the reference, bit for bit.
  void check(WireType wire, const std::vector<float>& values, const std::string& what) {
    const Encoded bytes = encoded(wire, DType::kF32, values);
    ASSERT_TRUE(bytes == encode(wire, values)) << name_of(wire) << ": " << what;
    const auto back = decoded<float>(wire, DType::kF32, bytes, values.size());
    const auto want = decode(wire, bytes.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_EQ(__builtin_bit_cast(uint32_t, back[i]), 0x7fc00000u) << name_of(wire) << ": " << what;
      } else {
        ASSERT_EQ(__builtin_bit_cast(uint32_t, back[i]), __builtin_bit_cast(uint32_t, want[i]))
            << name_of(wire) << ": " << what << ", " << values[i] << " at " << i;
      }
    }
  }

  const Codec* codec_ = nullptr;
};

TYPED_TEST_SUITE(CodecSuite, EverySet, NameOfSet);

TYPED_TEST(CodecSuite, EqualsTheReferenceAtEveryCount) {
  for (const WireType wire : kEncodings) {
    for (const int64_t count : {0, 1, 7, 255, 256, 257, 511, 4099}) {
      this->check(wire, random_floats(count, count + 1), std::to_string(count) + " elements");
    }
  }
}

// Every exponent with fractions around the places where rounding turns, of both signs, 256 to a block and alone.
TYPED_TEST(CodecSuite, EveryExponentAndTie) {
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t fraction : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0xfffu, 0x1000u, 0x1001u, 0x3000u,
                                    0x80000u, 0x7ffffu, 0x180000u, 0x7fffffu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) values.push_back(float_of(sign | exponent << 23 | fraction));
    }
  }
  for (const WireType wire : kEncodings) {
    this->check(wire, values, "all exponents");
    for (const float value : values) this->check(wire, {value}, "alone");
  }
}

// A block whose largest value is the largest code has the scale 1, so its elements show the rounding of codes.
TYPED_TEST(CodecSuite, CodesRoundToNearestEven) {
  for (const WireType wire : {WireType::kFp8, WireType::kInt8}) {
    const auto top = static_cast<float>(largest_code(wire));
    for (float step = 0x1p-11f; step <= 16; step *= 2) {
      std::vector<float> values{top};
      for (int i = -127; i <= 127; ++i) values.push_back(std::clamp(static_cast<float>(i) * step, -top, top));
      this->check(wire, values, "steps of " + std::to_string(step));
    }
  }
}

TYPED_TEST(CodecSuite, NothingThatIsNotFiniteBecomesFinite) {
  for (const float strange : {float_of(0x7f800000u), float_of(0xff800000u), float_of(0x7fc00000u),
                              float_of(0xffffffffu), float_of(0x7f800001u), float_of(0x7fffffffu)}) {
    for (const WireType wire : kEncodings) {
      std::vector<float> values(600, 1.5f);
      values[300] = strange;
      this->check(wire, values, "a value that is not finite");
      const auto back = this->round_trip(wire, values);
      for (int64_t i = 0; i < 600; ++i) {
        const bool struck = is_scaled(wire) ? i / kWireBlock == 1 : i == 300;
        EXPECT_EQ(std::isfinite(back[i]), !struck) << name_of(wire) << " at " << i;
      }
      if (!is_scaled(wire) && std::isinf(strange)) {
        EXPECT_EQ(back[300], strange);
      }
    }
  }
  EXPECT_EQ(this->round_trip(WireType::kFp16, {70000, -1e30f}), (std::vector<float>{INFINITY, -INFINITY}));
}

TYPED_TEST(CodecSuite, ErrorsStayWithinHalfAStep) {
  for (const WireType wire : kEncodings) {
    std::vector<float> values = random_floats(8192, 3);
    for (const float extreme : {std::numeric_limits<float>::max(), 1e-45f, 1e-38f}) {
      for (int i = 0; i < 256; ++i) values.push_back(extreme * (1 - static_cast<float>(i) / 300));
    }
    const auto back = this->round_trip(wire, values);
    for (size_t begin = 0; begin < values.size(); begin += kWireBlock) {
      double largest = 0;
      for (size_t i = begin; i < begin + kWireBlock; ++i) largest = std::max(largest, std::fabs(double{values[i]}));
      for (size_t i = begin; i < begin + kWireBlock; ++i) {
        if (!is_scaled(wire) && std::fabs(values[i]) > format_of(wire).largest) continue;  // overflows, tested above
        ASSERT_LE(std::fabs(double{back[i]} - values[i]), half_step(wire, values[i], largest))
            << name_of(wire) << " " << values[i];
      }
    }
  }
}

// Whole numbers up to 127, and numbers of four significant bits, times any power of two, lose nothing.
TYPED_TEST(CodecSuite, SmallWholeNumbersStayWhatTheyAre) {
  for (const WireType wire : kEncodings) {
    const int most = wire == WireType::kFp8 ? 16 : 127;
    for (const float unit : {1.0f, 0x1p-20f, 0x1p40f}) {
      if (wire == WireType::kFp16 && unit > 1) continue;
      for (int largest = 1; largest <= most; ++largest) {
        std::vector<float> values;
        for (int i = 0; i < 300; ++i) values.push_back(static_cast<float>(i % (2 * largest + 1) - largest) * unit);
        EXPECT_EQ(this->round_trip(wire, values), values) << name_of(wire) << " up to " << largest << " x " << unit;
      }
    }
  }
}

TYPED_TEST(CodecSuite, ZerosStayZero) {
  for (const WireType wire : kEncodings) {
    EXPECT_EQ(this->round_trip(wire, std::vector<float>(300)), std::vector<float>(300, 0.0f)) << name_of(wire);
  }
}

// Doubles pass through float32; 16-bit floats are widened exactly, and what is decoded is rounded to them once.
TYPED_TEST(CodecSuite, OtherTypesPassThroughFloat32) {
  const std::vector<float> floats = random_floats(1003, 9);
  std::vector<double> doubles(floats.begin(), floats.end());
  doubles[5] = 1e300, doubles[700] = floats[700] * (1 + 1e-9);
  std::vector<float> narrowed(doubles.begin(), doubles.end());
  for (const WireType wire : kEncodings) {
    const Encoded bytes = this->encoded(wire, DType::kF64, doubles);
    EXPECT_TRUE(bytes == encode(wire, narrowed)) << name_of(wire);
    const auto back = this->template decoded<double>(wire, DType::kF64, encode(wire, floats), floats.size());
    const auto want = decode(wire, encode(wire, floats).data(), floats.size());
    EXPECT_EQ(back, std::vector<double>(want.begin(), want.end())) << name_of(wire);
  }
  for (const WireType wire : {WireType::kFp8, WireType::kInt8}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const Format& f = dtype == DType::kF16 ? kHalf : kBFloat16;
      std::vector<uint16_t> shorts;
      std::vector<float> wide;
      for (const float value : floats) {
        const double representable = std::isfinite(rounded(f, value)) ? rounded(f, value) : 1;
        shorts.push_back(static_cast<uint16_t>(bits_of(f, representable)));
        wide.push_back(static_cast<float>(representable));
      }
      const Encoded bytes = encode(wire, wide);
      EXPECT_TRUE(this->encoded(wire, dtype, shorts) == bytes) << name_of(wire) << " " << name_of(dtype);
      std::vector<uint16_t> want;
      for (const float value : decode(wire, bytes.data(), wide.size())) {
        want.push_back(static_cast<uint16_t>(bits_of(f, rounded(f, value))));
      }
      EXPECT_EQ(this->template decoded<uint16_t>(wire, dtype, bytes, wide.size()), want) << name_of(wire);
    }
  }
}

}  // namespace ringdp::kernels::testing

namespace ringdp::kernels {
namespace {

void expect_refused(WireType wire, DType dtype, int64_t count, const std::string& part) {
  float values[4] = {1, 2, 3, 4};
  std::byte bytes[64] = {};
  for (const bool encodes : {true, false}) {
    try {
      encodes ? encode(wire, dtype, values, bytes, count) : decode(wire, dtype, bytes, values, count);
      FAIL() << "accepted, expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    for (const std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0});
    EXPECT_EQ(values[0], 1);
  }
}

TEST(Codec, RefusesBadArgumentsAndWritesNothing) {
  expect_refused(WireType::kFp32, DType::kF32, 4, "fp32 encodes nothing");
  expect_refused(WireType::kInt8, DType::kI32, 4, "int32 is no real floating type");
  expect_refused(WireType::kBf16, DType::kC64, 4, "complex64 is no real floating type");
  expect_refused(WireType::kBf16, DType::kF32, -1, "count of -1");
}

TEST(Codec, RunsOnTheBestKernelsOfTheMachine) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<float>(i * i % 997) - 400);
  for (const WireType wire : {WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8}) {
    testing::Encoded bytes(encoded_bytes(wire, 1000));
    encode(wire, DType::kF32, values.data(), bytes.data(), 1000);
    EXPECT_TRUE(bytes == testing::encode(wire, values)) << name_of(wire);
    std::vector<float> back(1000);
    decode(wire, DType::kF32, bytes.data(), back.data(), 1000);
    EXPECT_EQ(back, testing::decode(wire, bytes.data(), 1000)) << name_of(wire);
  }
}

}  // namespace

}  // namespace ringdp::kernels
