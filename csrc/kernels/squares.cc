#include "kernels/squares.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "kernels/baseline.h"

namespace ringdp::kernels {
namespace {

constexpr int kSums = 16;

float widened(float value) { return value; }
double widened(double value) { return value; }
float widened(BFloat16 value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16); }
float widened(Half value) { return HalfBits<Baseline>::half_to_float(Floats<Baseline>::ShortBits{value.bits})[0]; }

template <class T>
double squares_of(const T* values, int64_t count) {
  double sums[kSums] = {};
  const auto add = [&](int64_t i, int lane) {
    const auto value = static_cast<double>(widened(values[i]));
    sums[lane] += value * value;
  };
  const int64_t whole = count / kSums * kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) add(i + lane, lane);
  }
  for (int64_t i = whole; i < count; ++i) add(i, static_cast<int>(i - whole));
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

void block_squares(DType dtype, const void* values, int64_t count, double* sums) {
  if (count < 0) {
    throw Error(ErrorKind::kInvalidArgument, "norm: " + std::to_string(count) + " elements; it must be 0 or more");
  }
  if (!is_floating(dtype)) {
    throw Error(ErrorKind::kInvalidArgument, std::string("norm: ") + name_of(dtype) + " is no real floating type");
  }
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>) {
      const auto* const from = static_cast<const T*>(values);
      for (int64_t begin = 0; begin < count; begin += kSquareBlock) {
        sums[begin / kSquareBlock] = squares_of(from + begin, std::min(kSquareBlock, count - begin));
      }
    }
  });
}

}  // namespace ringdp::kernels
