#include "base/dtype.h"

#include "base/bytes.h"

namespace ringdp {
namespace {

constexpr int64_t kScaleBytes = sizeof(float);

int64_t element_bytes(WireType wire) {
  static constexpr int64_t kBytes[kWireTypeCount] = {4, 2, 2, 1, 1};
  return kBytes[static_cast<int>(wire)];
}

bool has_scales(WireType wire) { return wire == WireType::kFp8 || wire == WireType::kInt8; }

}  // namespace

int64_t size_of(DType dtype) {
  static constexpr int64_t kSizes[kDTypeCount] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1, 1, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}

const char* name_of(DType dtype) {
  static constexpr const char* kNames[kDTypeCount] = {
      "uint8", "int8",          "uint16",      "int16",           "uint32",          "int32",         "uint64",
      "int64", "float16",       "bfloat16",    "float32",         "float64",         "complex64",     "complex128",
      "bool",  "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"};
  const auto i = static_cast<int>(dtype);
  return i < kDTypeCount ? kNames[i] : "unknown dtype";
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"SUM",  "AVG", "MIN",  "MAX",       "PRODUCT",
                                                         "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  const auto i = static_cast<int>(op);
  return i < kReduceOpCount ? kNames[i] : "unknown reduce op";
}

bool is_number(DType dtype) { return static_cast<int>(dtype) < kNumberCount; }

bool is_floating(DType dtype) { return dtype >= DType::kF16 && dtype <= DType::kF64; }

bool is_inexact(DType dtype) { return is_floating(dtype) || dtype == DType::kC64 || dtype == DType::kC128; }

bool is_whole(DType dtype) { return is_number(dtype) && !is_floating(dtype); }

bool can_reduce(DType dtype, ReduceOp op) {
  const bool complex = dtype == DType::kC64 || dtype == DType::kC128;
  switch (op) {
    case ReduceOp::kSum:
      return is_number(dtype) || complex || dtype == DType::kBool;
    case ReduceOp::kAvg:
      return is_number(dtype) || complex;
    case ReduceOp::kPremulSum:
      return is_floating(dtype) || complex;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kProduct:
      return is_number(dtype) || dtype == DType::kBool;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_whole(dtype) || dtype == DType::kBool;
  }
  return false;
}

const char* name_of(WireType wire) {
  static constexpr const char* kNames[kWireTypeCount] = {"fp32", "bf16", "fp16", "fp8", "int8"};
  const auto i = static_cast<int>(wire);
  return i < kWireTypeCount ? kNames[i] : "unknown wire type";
}

int64_t encoded_bytes(WireType wire, int64_t count) {
  return count * element_bytes(wire) + (has_scales(wire) ? ceil_div(count, kWireBlock) * kScaleBytes : 0);
}

bool is_encoded(WireType wire, DType dtype, ReduceOp op) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  return wire != WireType::kFp32 && sums && is_floating(dtype) && size_of(dtype) > element_bytes(wire);
}

}  // namespace ringdp
