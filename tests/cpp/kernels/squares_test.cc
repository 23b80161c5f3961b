#include "kernels/squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"

namespace ringdp::kernels {
namespace {

std::vector<float> numbers(int64_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 30) - 20);
  return values;
}

// The rule of the header, one element at a time.
double reference(const std::vector<double>& values, int64_t begin, int64_t end) {
  double sums[16] = {}, total = 0;
  for (int64_t i = begin; i < end; ++i) sums[(i - begin) % 16] += values[i] * values[i];
  for (const double sum : sums) total += sum;
  return total;
}

template <class T>
void expect_reference(DType dtype, const std::vector<T>& stored, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<double> sums(square_blocks(count) + 1, -1);
  block_squares(dtype, stored.data(), count, sums.data());
  for (int64_t block = 0; block < square_blocks(count); ++block) {
    const int64_t begin = block * kSquareBlock;
    EXPECT_EQ(sums[block], reference(values, begin, std::min(count, begin + kSquareBlock))) << name_of(dtype) << block;
  }
  EXPECT_EQ(sums.back(), -1) << "written past the end";
}

TEST(Squares, EveryLengthAndType) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 3000}) {
    const std::vector<float> floats = numbers(count);
    const std::vector<double> values(floats.begin(), floats.end());
    expect_reference(DType::kF32, floats, values);
    expect_reference(DType::kF64, values, values);
    std::vector<BFloat16> narrow;
    std::vector<double> cut;
    for (const float value : floats) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, value) & 0xffff0000u;
      narrow.push_back({static_cast<uint16_t>(bits >> 16)});
      cut.push_back(__builtin_bit_cast(float, bits));
    }
    expect_reference(DType::kBF16, narrow, cut);
  }
}

TEST(Squares, HalvesAreWidened) {
  const std::vector<Half> halves = {{0x3c00}, {0xc000}, {0x0001}, {0x7bff}};  // 1, -2, 2^-24, 65504
  expect_reference(DType::kF16, halves, {1, -2, std::ldexp(1.0, -24), 65504});
}

TEST(Squares, InfinitiesAndNanShow) {
  const float values[] = {1, INFINITY, 2};
  double sum = 0;
  block_squares(DType::kF32, values, 3, &sum);
  EXPECT_TRUE(std::isinf(sum));
  const float nan[] = {1, NAN};
  block_squares(DType::kF32, nan, 2, &sum);
  EXPECT_TRUE(std::isnan(sum));
}

TEST(Squares, OthersAreRefused) {
  double sum = 7;
  EXPECT_THROW(block_squares(DType::kI32, &sum, 1, &sum), Error);
  EXPECT_THROW(block_squares(DType::kF32, &sum, -1, &sum), Error);
  EXPECT_EQ(sum, 7);
}

}  // namespace
}  // namespace ringdp::kernels
