#include "base/dtype.h"

namespace ringdp {

int64_t size_of(DType dtype) {
  return visit_dtype(dtype, [](auto tag) -> int64_t { return sizeof(typename decltype(tag)::type); });
}

const char* name_of(DType dtype) {
  static constexpr const char* kNames[kDTypeCount] = {"uint8",  "int8",  "uint16",  "int16",    "uint32",  "int32",
                                                      "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
  const auto i = static_cast<int>(dtype);
  return i < kDTypeCount ? kNames[i] : "unknown dtype";
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"SUM", "AVG", "MIN", "MAX", "PRODUCT"};
  const auto i = static_cast<int>(op);
  return i < kReduceOpCount ? kNames[i] : "unknown reduce op";
}

bool is_floating(DType dtype) { return dtype >= DType::kF16; }

}  // namespace ringdp
