// Element types, reduce operations and wire types, and the one place that turns a run-time DType into a C++ type.
#pragma once
#include <cstdint>
#include <string>

namespace ringdp {

enum class DType : uint8_t {
  kU8,  // up to kF64: numbers, which kernels compute in
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,  // up to kBool: reduced by the kernels of numbers
  kC128,
  kBool,
  kF8E4M3FN,  // fp8: moved, never reduced
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF8E8M0FNU,
};
constexpr int kNumberCount = 12;
constexpr int kDTypeCount = 20;

// PREMUL_SUM: every rank multiplies its own tensor by its own factor first; from there on it is a SUM.
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor, kPremulSum };
constexpr int kReduceOpCount = 9;

// Storage of 16-bit floats; arithmetic on them happens in float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

int64_t size_of(DType dtype);      // bytes of one element
const char* name_of(DType dtype);  // torch's spelling: "float32", "bfloat16", "int64"
const char* name_of(ReduceOp op);  // "SUM", "AVG", ...
bool is_number(DType dtype);
bool is_floating(DType dtype);  // a number with a fraction
bool is_whole(DType dtype);     // an integer; not bool
bool is_inexact(DType dtype);   // a number with a fraction, or a complex one: the order of a sum matters

// Whether `op` has a meaning on `dtype`: AVG and PREMUL_SUM need fractions, bit operations need bits, complex numbers
// have no order, and fp8 is only moved.
bool can_reduce(DType dtype, ReduceOp op);

// The type in which sums of `dtype` are held: float32 for the 16-bit floats, else the type itself.
constexpr DType wide_of(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype; }

template <class T>
struct TypeTag {
  using type = T;
};

// Calls visitor(TypeTag<T>{}) with the storage type of a number dtype.
template <class Visitor>
auto visit_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kU8:
      return visitor(TypeTag<uint8_t>{});
    case DType::kI8:
      return visitor(TypeTag<int8_t>{});
    case DType::kU16:
      return visitor(TypeTag<uint16_t>{});
    case DType::kI16:
      return visitor(TypeTag<int16_t>{});
    case DType::kU32:
      return visitor(TypeTag<uint32_t>{});
    case DType::kI32:
      return visitor(TypeTag<int32_t>{});
    case DType::kU64:
      return visitor(TypeTag<uint64_t>{});
    case DType::kI64:
      return visitor(TypeTag<int64_t>{});
    case DType::kF16:
      return visitor(TypeTag<Half>{});
    case DType::kBF16:
      return visitor(TypeTag<BFloat16>{});
    case DType::kF64:
      return visitor(TypeTag<double>{});
    default:
      break;
  }
  return visitor(TypeTag<float>{});
}

// Wire types: in how many bytes the elements of a sum travel on links, and which sums a wire type applies to.
//
// kFp32 is the default and means "not encoded". The others are lossy on purpose: each contribution is rounded once
// before it is sent, and the result once more (the bits are defined in kernels/codec.h). kFp8 (e4m3) and kInt8 come in
// blocks: one float32 scale, then a byte for each of its elements.
enum class WireType : uint8_t { kFp32, kBf16, kFp16, kFp8, kInt8 };
constexpr int kWireTypeCount = 5;

// Elements that share a scale. Slices and segments are cut at its multiples, so that blocks never depend on how many
// ranks there are or how a tensor is cut into segments.
constexpr int64_t kWireBlock = 256;

const char* name_of(WireType wire);  // as in the settings: "bf16"

// Bytes of `count` encoded elements that begin at a block, scales included.
int64_t encoded_bytes(WireType wire, int64_t count);

// Whether sums of `dtype` by `op` travel encoded: real floating types that are wider than the wire type's elements.
bool is_encoded(WireType wire, DType dtype, ReduceOp op);

}  // namespace ringdp
