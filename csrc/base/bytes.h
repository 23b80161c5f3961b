// Integer arithmetic on sizes: rounding, checked multiplication, balanced division.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace ringdp {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// a mod n in [0, n), also for negative a: ranks and chunks are counted round a ring, both ways.
constexpr int wrap(int a, int n) { return ((a % n) + n) % n; }
constexpr int64_t align_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }

// a * b, or InvalidArgument when the product does not fit (sizes come from users).
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a size of " + std::to_string(a) + " x " + std::to_string(b) + " does not fit");
  }
  return product;
}

// Half-open range [begin, end) of elements.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// Part `index` of `parts` of `count` elements: sizes differ by at most one, the larger parts first.
inline Extent balanced_part(int64_t count, int parts, int index) {
  const int64_t base = count / parts, extra = count % parts;
  const int64_t begin = base * index + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// The same, cut at multiples of `unit` elements; only the last part may end elsewhere.
inline Extent balanced_part(int64_t count, int parts, int index, int64_t unit) {
  const Extent units = balanced_part(ceil_div(count, unit), parts, index);
  return {units.begin * unit < count ? units.begin * unit : count, units.end * unit < count ? units.end * unit : count};
}

}  // namespace ringdp
