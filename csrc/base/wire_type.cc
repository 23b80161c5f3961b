#include "base/wire_type.h"

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
