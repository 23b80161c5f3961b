// Codes with error feedback on every instruction set, against a reference that goes element by element.
#include "kernels/codes.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "codec_reference.h"
#include "instruction_sets.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels::testing {

constexpr Code kCodes[] = {Code::kInt8, Code::kFp8, Code::kInt4, Code::kSign};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline float int4_scale(const std::vector<float>& block) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::fabs(x));
  const float ceiling = std::nextafter(std::numeric_limits<float>::max() / 7, 0.0f);
  const float scale = std::clamp(largest / 7, std::numeric_limits<float>::min(), ceiling);
  const auto power = static_cast<float>(std::ldexp(1.0, std::ilogb(std::nextafter(scale, 0.0f)) + 1));
  const bool loses =
      std::any_of(block.begin(), block.end(), [&](float x) { return std::nearbyint(x / power) != x / power; });
  return loses ? scale : power;
}

inline float sign_scale(std::vector<float> block) {
  const auto others = block.size() - static_cast<size_t>(std::count(block.begin(), block.end(), 0.0f));
  for (float& x : block) x = std::fabs(x);
  for (size_t half = block.size() / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) block[i] += block[i + half];
  }
  const float scale = block[0] / static_cast<float>(std::max<size_t>(others, 1));
  return std::isinf(scale) ? kNan : scale < std::numeric_limits<float>::min() ? 0 : scale;
}

// What a block decodes to.
inline std::vector<float> said(Code code, const std::vector<float>& block) {
  std::vector<float> out(block.size(), kNan);
  if (!std::all_of(block.begin(), block.end(), [](float x) { return std::isfinite(x); })) return out;
  if (code == Code::kInt8 || code == Code::kFp8) {
    const WireType wire = code == Code::kInt8 ? WireType::kInt8 : WireType::kFp8;
    return decode(wire, encode(wire, block).data(), static_cast<int64_t>(block.size()));
  }
  const float scale = code == Code::kInt4 ? int4_scale(block) : sign_scale(block);
  for (size_t i = 0; i < block.size(); ++i) {
    out[i] = code == Code::kInt4 ? std::nearbyint(block[i] / scale) * scale : block[i] >= 0 ? scale : -scale;
  }
  return out;
}

inline bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (x == 0 && y == 0);
         });
}

template <class Set>
class CodesSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const InstructionSet& set : supported_instruction_sets()) {
      if (set.name == std::string(Set::name())) codec_ = &set.codec;
    }
    if (codec_ == nullptr) GTEST_SKIP() << "this machine or this build has no " << Set::name();
  }
  // What so many blocks decode to; `residuals` change, if there are any.
  std::vector<float> there_and_back(Code code, const std::vector<float>& values, std::vector<float>* residuals,
                                    int64_t blocks) {
    const auto bytes = static_cast<size_t>(blocks * code_block_bytes(code));
    Encoded encoded(bytes + 1, std::byte{0xA5});
    encode_with(*codec_, code, values.data(), residuals == nullptr ? nullptr : residuals->data(),
                static_cast<int64_t>(values.size()), encoded.data(), blocks);
    EXPECT_EQ(encoded.back(), std::byte{0xA5}) << "written past the end";
    std::vector<float> out(static_cast<size_t>(blocks * code_block(code)) + 1, 77.0f);
    decode_with(*codec_, code, encoded.data(), blocks, out.data());
    EXPECT_EQ(out.back(), 77.0f) << "written past the end";
    out.pop_back();
    return out;
  }

  const Codec* codec_ = nullptr;
};

TYPED_TEST_SUITE(CodesSuite, EverySet, NameOfSet);

inline std::vector<float> uneven(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values)
    x = random() % 9 == 0 ? 0.0f : normal(random) * std::ldexp(1.0f, -static_cast<int>(random() % 20));
  return values;
}

TYPED_TEST(CodesSuite, EqualsTheReferenceStepAfterStep) {
  for (const Code code : kCodes) {
    for (const int64_t count : {0, 1, 7, 8, 255, 256, 257, 511, 512, 513, 3000}) {
      const int64_t block = code_block(code), blocks = (count + block - 1) / block + 1;
      std::vector<float> residuals(count), wanted_residuals(count);
      for (uint32_t step = 0; step < 4; ++step) {
        std::vector<float> values = uneven(count, 10 * count + step);
        if (step == 2 && count > 300) values[300] = INFINITY;
        const auto found = this->there_and_back(code, values, &residuals, blocks);
        std::vector<float> wanted;
        for (int64_t i = 0; i < blocks; ++i) {
          std::vector<float> sums(block);
          const int64_t begin = std::min(i * block, count), n = std::min(block, count - begin);
          for (int64_t k = 0; k < n; ++k) sums[k] = values[begin + k] + wanted_residuals[begin + k];
          const auto decoded = said(code, sums);
          for (int64_t k = 0; k < n; ++k)
            wanted_residuals[begin + k] = std::isnan(decoded[k]) ? 0 : sums[k] - decoded[k];
          wanted.insert(wanted.end(), decoded.begin(), decoded.end());
        }
        ASSERT_TRUE(equal_bits(found, wanted)) << "code " << int(code) << ", " << count << " elements, step " << step;
        ASSERT_TRUE(equal_bits(residuals, wanted_residuals))
            << "code " << int(code) << ", " << count << " elements, step " << step;
      }
    }
  }
}

TYPED_TEST(CodesSuite, WithoutFeedbackNothingIsAdded) {
  for (const Code code : kCodes) {
    const auto values = uneven(1000, 5);
    std::vector<float> nothing(values.size());
    const auto plain = this->there_and_back(code, values, nullptr, 4);
    EXPECT_TRUE(equal_bits(plain, this->there_and_back(code, values, &nothing, 4)));
  }
}

TYPED_TEST(CodesSuite, WhatIsNotFiniteMakesItsBlockNan) {
  for (const Code code : kCodes) {
    for (const float strange : {INFINITY, -INFINITY, kNan, -kNan}) {
      std::vector<float> values(2 * code_block(code), 1.0f);
      values.back() = strange;
      const auto found = this->there_and_back(code, values, nullptr, 2);
      for (int64_t i = 0; i < code_block(code); ++i) {
        ASSERT_EQ(found[i], 1.0f);
        ASSERT_EQ(std::bit_cast<uint32_t>(found[code_block(code) + i]), 0x7fc00000u);
      }
    }
  }
  std::vector<float> large(kSignBlock, 3e38f), residuals(kSignBlock);  // whose sum is too large
  EXPECT_TRUE(std::isnan(this->there_and_back(Code::kSign, large, &residuals, 1)[0]));
  EXPECT_EQ(residuals, std::vector<float>(kSignBlock, 0.0f));
}

TEST(Codes, RefusesWhatDoesNotFit) {
  float value = 1;
  std::byte encoded[600];
  EXPECT_THROW(encode(Code::kInt8, &value, nullptr, 1, encoded, 0), Error);
  EXPECT_THROW(encode(Code::kInt8, &value, nullptr, -1, encoded, 1), Error);
  EXPECT_THROW(decode(Code::kSign, encoded, -1, &value), Error);
}

}  // namespace ringdp::kernels::testing
