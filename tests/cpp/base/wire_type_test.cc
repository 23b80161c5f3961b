#include "base/wire_type.h"

#include <gtest/gtest.h>

#include "base/env.h"

namespace ringdp {
namespace {

constexpr WireType kAll[] = {WireType::kFp32, WireType::kBf16, WireType::kFp16, WireType::kFp8, WireType::kInt8};

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
      const bool wider = is_floating(dtype) && wire != WireType::kFp32 && 256 * size_of(dtype) > encoded_bytes(wire, 256);
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
