// Sizes, names and kinds of every element type follow from the C++ type that visit_dtype gives.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

namespace ringdp {
namespace {

template <class T>
constexpr bool kIsShortFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

class EveryDType : public ::testing::TestWithParam<int> {
 protected:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

TEST_P(EveryDType, SizeIsTheSizeOfItsStorage) {
  visit_dtype(dtype(), [&](auto tag) {
    EXPECT_EQ(size_of(dtype()), int64_t{sizeof(typename decltype(tag)::type)});
  });
}

// torch's spelling ends in the number of bits.
TEST_P(EveryDType, NameTellsSignednessAndBits) {
  const std::string name = name_of(dtype());
  visit_dtype(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::string stem = std::is_unsigned_v<T> ? "uint" : "int";
    if (std::is_floating_point_v<T> || std::is_same_v<T, Half>) stem = "float";
    if (std::is_same_v<T, BFloat16>) stem = "bfloat";
    EXPECT_EQ(name, stem + std::to_string(8 * sizeof(T)));
  });
}

TEST_P(EveryDType, FloatingAsItsStorage) {
  visit_dtype(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    EXPECT_EQ(is_floating(dtype()), std::is_floating_point_v<T> || kIsShortFloat<T>) << name_of(dtype());
  });
}

TEST_P(EveryDType, OnlyShortFloatsAreSummedInAnotherType) {
  visit_dtype(dtype(), [&](auto tag) {
    const bool short_float = kIsShortFloat<typename decltype(tag)::type>;
    EXPECT_EQ(wide_of(dtype()), short_float ? DType::kF32 : dtype());
  });
}

INSTANTIATE_TEST_SUITE_P(DType, EveryDType, ::testing::Range(0, kDTypeCount));

TEST(DType, NamesAreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) names.insert(name_of(static_cast<DType>(i)));
  EXPECT_EQ(names.size(), size_t{kDTypeCount});
}

TEST(DType, AValueOutsideTheEnumerationHasANameToo) {
  EXPECT_STREQ(name_of(static_cast<DType>(kDTypeCount)), "unknown dtype");
  EXPECT_STREQ(name_of(static_cast<ReduceOp>(kReduceOpCount)), "unknown reduce op");
}

TEST(ReduceOp, NamesAreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kReduceOpCount; ++i) names.insert(name_of(static_cast<ReduceOp>(i)));
  EXPECT_EQ(names.size(), size_t{kReduceOpCount});
  EXPECT_STREQ(name_of(ReduceOp::kAvg), "AVG");
}

}  // namespace
}  // namespace ringdp
