// What the codec refuses, and which kernels it runs on. The encodings are tested per instruction set.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codec_reference.h"

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
