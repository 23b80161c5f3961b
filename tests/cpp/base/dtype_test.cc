// Sizes, names and kinds of every element type follow from the C++ type that visit_dtype gives.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

#include "base/settings.h"

namespace ringdp {
namespace {

template <class T>
constexpr bool kIsShortFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

class EveryNumber : public ::testing::TestWithParam<int> {
 protected:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

TEST_P(EveryNumber, SizeIsTheSizeOfItsStorage) {
  visit_dtype(dtype(), [&](auto tag) { EXPECT_EQ(size_of(dtype()), int64_t{sizeof(typename decltype(tag)::type)}); });
}

// torch's spelling ends in the number of bits.
TEST_P(EveryNumber, NameTellsSignednessAndBits) {
  const std::string name = name_of(dtype());
  visit_dtype(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::string stem = std::is_unsigned_v<T> ? "uint" : "int";
    if (std::is_floating_point_v<T> || std::is_same_v<T, Half>) stem = "float";
    if (std::is_same_v<T, BFloat16>) stem = "bfloat";
    EXPECT_EQ(name, stem + std::to_string(8 * sizeof(T)));
  });
}

TEST_P(EveryNumber, FloatingAsItsStorage) {
  visit_dtype(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    EXPECT_EQ(is_floating(dtype()), std::is_floating_point_v<T> || kIsShortFloat<T>) << name_of(dtype());
  });
}

TEST_P(EveryNumber, OnlyShortFloatsAreSummedInAnotherType) {
  visit_dtype(dtype(), [&](auto tag) {
    const bool short_float = kIsShortFloat<typename decltype(tag)::type>;
    EXPECT_EQ(wide_of(dtype()), short_float ? DType::kF32 : dtype());
  });
}

INSTANTIATE_TEST_SUITE_P(DType, EveryNumber, ::testing::Range(0, kNumberCount));

TEST(DType, TheOthersAreTwoNumbersOrOneByte) {
  for (int i = kNumberCount; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool complex = std::string(name_of(dtype)).rfind("complex", 0) == 0;
    EXPECT_EQ(size_of(dtype), complex ? std::stoll(std::string(name_of(dtype)).substr(7)) / 8 : 1) << name_of(dtype);
    EXPECT_EQ(wide_of(dtype), dtype);
    EXPECT_FALSE(is_number(dtype));
    EXPECT_FALSE(is_floating(dtype));
  }
}

TEST(ReduceOp, HasAMeaningOnSomeDTypesOnly) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name = name_of(dtype);
    const bool complex = name.rfind("complex", 0) == 0, bits = name.rfind("int", 0) == 0 || name.rfind("uint", 0) == 0;
    const bool fp8 = name.rfind("float8", 0) == 0, fractions = is_floating(dtype) || complex;
    EXPECT_EQ(can_reduce(dtype, ReduceOp::kSum), !fp8) << name;
    EXPECT_EQ(can_reduce(dtype, ReduceOp::kAvg), fractions || bits) << name;
    EXPECT_EQ(can_reduce(dtype, ReduceOp::kPremulSum), fractions) << name;
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      EXPECT_EQ(can_reduce(dtype, op), !fp8 && !complex) << name;
    }
    for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      EXPECT_EQ(can_reduce(dtype, op), bits || dtype == DType::kBool) << name;
    }
    EXPECT_FALSE(can_reduce(dtype, static_cast<ReduceOp>(kReduceOpCount))) << name;
  }
}

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

constexpr WireType kAll[] = {WireType::kFp32, WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8};

// As the header of a rank with another build may hold it.
TEST(WireType, OneThatThereIsNotHasAName) { EXPECT_STREQ(name_of(static_cast<WireType>(200)), "unknown wire type"); }

TEST(WireType, NamesAreTheSettingsOwn) {
  for (const WireType wire : kAll) {
    Settings settings;
    set_field(settings, "wire", name_of(wire));
    EXPECT_EQ(settings.wire, wire);
  }
}

TEST(WireType, BytesAreHalvesAndQuartersAndAScalePerBlock) {
  for (const int64_t count : {0, 1, 255, 256, 257, 1000, 65536}) {
    const int64_t scales = 4 * ((count + 255) / 256);
    EXPECT_EQ(encoded_bytes(WireType::kBf16, count), 2 * count);
    EXPECT_EQ(encoded_bytes(WireType::kFp16, count), 2 * count);
    EXPECT_EQ(encoded_bytes(WireType::kFp8, count), count + scales);
    EXPECT_EQ(encoded_bytes(WireType::kInt8, count), count + scales);
  }
}

TEST(WireType, WholeBlocksAreLaidEndToEnd) {
  for (const WireType wire : kAll) {
    for (const int64_t tail : {0, 1, 256, 300}) {
      EXPECT_EQ(encoded_bytes(wire, 3 * kWireBlock) + encoded_bytes(wire, tail),
                encoded_bytes(wire, 3 * kWireBlock + tail));
    }
  }
}

TEST(WireType, AppliesToSumsOfWiderRealFloats) {
  for (const WireType wire : kAll) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      const bool wider =
          is_floating(dtype) && wire != WireType::kFp32 && 256 * size_of(dtype) > encoded_bytes(wire, 256);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
        EXPECT_EQ(is_encoded(wire, dtype, op), wider) << name_of(wire) << " " << name_of(dtype);
      }
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        EXPECT_FALSE(is_encoded(wire, dtype, op)) << name_of(wire) << " " << name_of(dtype);
      }
    }
  }
  EXPECT_FALSE(is_encoded(WireType::kBf16, DType::kF16, ReduceOp::kSum)) << "of one size";
  EXPECT_FALSE(is_encoded(WireType::kInt8, DType::kC64, ReduceOp::kSum)) << "complex numbers travel as they are";
  EXPECT_TRUE(is_encoded(WireType::kInt8, DType::kF64, ReduceOp::kAvg));
}

}  // namespace

}  // namespace ringdp
