#include "kernels/codec.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr int64_t kMostBlockBytes = kWireBlock * sizeof(double);

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "wire codec: " + what); }

void check(WireType wire, DType dtype, int64_t count) {
  if (wire == WireType::kFp32) refuse("the wire type fp32 encodes nothing; send the elements as they are");
  if (!is_floating(dtype)) refuse(std::string(name_of(dtype)) + " is no real floating type");
  if (count < 0) refuse("a count of " + std::to_string(count) + " elements; it must be 0 or more");
}

// Calls visit(first element, elements) for every block; only the last one may be short.
template <class Visitor>
void for_each_block(int64_t count, Visitor visit) {
  for (int64_t begin = 0; begin < count; begin += kWireBlock) visit(begin, std::min(kWireBlock, count - begin));
}

}  // namespace

void encode_with(const Codec& codec, WireType wire, DType dtype, const void* src, void* encoded, int64_t count) {
  check(wire, dtype, count);
  alignas(64) float block[kWireBlock];
  alignas(64) std::byte elements[kMostBlockBytes], out[kMostBlockBytes];
  for_each_block(count, [&](int64_t begin, int64_t n) {
    const std::byte* from = static_cast<const std::byte*>(src) + begin * size_of(dtype);
    std::byte* const to = static_cast<std::byte*>(encoded) + encoded_bytes(wire, begin);
    const bool whole = n == kWireBlock;
    if (!whole) {  // zeros fill it up: they change no scale
      std::memcpy(elements, from, n * size_of(dtype));
      std::memset(elements + n * size_of(dtype), 0, (kWireBlock - n) * size_of(dtype));
      from = elements;
    }
    codec.widen(dtype, from, block);
    codec.encode(wire, block, whole ? to : out);
    if (!whole) std::memcpy(to, out, encoded_bytes(wire, n));
  });
}

void decode_with(const Codec& codec, WireType wire, DType dtype, const void* encoded, void* dst, int64_t count) {
  check(wire, dtype, count);
  alignas(64) float block[kWireBlock];
  alignas(64) std::byte in[kMostBlockBytes] = {}, elements[kMostBlockBytes];
  for_each_block(count, [&](int64_t begin, int64_t n) {
    const std::byte* from = static_cast<const std::byte*>(encoded) + encoded_bytes(wire, begin);
    std::byte* const to = static_cast<std::byte*>(dst) + begin * size_of(dtype);
    const bool whole = n == kWireBlock;
    if (!whole) {
      std::memcpy(in, from, encoded_bytes(wire, n));
      from = in;
    }
    codec.decode(wire, from, block);
    codec.narrow(dtype, block, whole ? to : elements);
    if (!whole) std::memcpy(to, elements, n * size_of(dtype));
  });
}

void encode(WireType wire, DType dtype, const void* src, void* encoded, int64_t count) {
  encode_with(supported_instruction_sets().front().codec, wire, dtype, src, encoded, count);
}

void decode(WireType wire, DType dtype, const void* encoded, void* dst, int64_t count) {
  decode_with(supported_instruction_sets().front().codec, wire, dtype, encoded, dst, count);
}

}  // namespace ringdp::kernels
