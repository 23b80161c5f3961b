// What the wire types make of tensors, and of a sum that travels encoded: on kernels/codec_reference.h.
#pragma once
#include <vector>

#include "kernels/codec_reference.h"
#include "oracle.h"

namespace ringdp::plan::testing {

inline Bytes encoded(WireType wire, const std::byte* elements, int64_t count, DType dtype) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(load(elements, i, dtype)));
  return kernels::testing::encode(wire, values);
}

inline void decode_into(WireType wire, const std::byte* bytes, int64_t count, DType dtype, std::byte* elements) {
  const std::vector<float> values = kernels::testing::decode(wire, bytes, count);
  for (int64_t i = 0; i < count; ++i) store(elements, i, dtype, values[i]);
}

// `tensor` encoded from its start on, and decoded as elements of `to`.
inline Bytes through_wire(WireType wire, const Bytes& tensor, DType from, DType to) {
  const int64_t count = static_cast<int64_t>(tensor.size()) / size_of(from);
  Bytes out(count * size_of(to));
  decode_into(wire, encoded(wire, tensor.data(), count, from).data(), count, to, out.data());
  return out;
}

// Everyone's tensor through the wire, folded in rank order in the wide type and divided; then, in an all_reduce, through
// the wire once more.
inline Bytes encoded_sum(WireType wire, const std::vector<Bytes>& tensors, DType dtype, ReduceOp op, bool shared) {
  const DType wide = wide_of(dtype);
  std::vector<Bytes> decoded;
  for (const Bytes& tensor : tensors) decoded.push_back(through_wire(wire, tensor, dtype, wide));
  std::vector<const std::byte*> everyones;
  for (const Bytes& tensor : decoded) everyones.push_back(tensor.data());
  Bytes sum(decoded[0].size());
  const int64_t count = static_cast<int64_t>(sum.size()) / size_of(wide);
  for (int64_t i = 0; i < count; ++i) fold_serially(everyones, i, 0, wide, op, sum.data());
  if (shared) return through_wire(wire, sum, wide, dtype);
  Bytes result(count * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) store(result.data(), i, dtype, load(sum.data(), i, wide));
  return result;
}

}  // namespace ringdp::plan::testing
