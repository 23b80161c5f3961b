// Typed elements in byte buffers and the serial fold that defines what a collective must give, bit for bit.
//
// Independent of csrc/kernels: an element is held as a double, which represents float32, bfloat16, int32 and float64
// exactly; every operation is rounded to the type it is contracted to happen in.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/dtype.h"
#include "kernels/codec_reference.h"

namespace ringdp::plan::testing {

using Bytes = std::vector<std::byte>;

inline double rounded(double value, DType dtype) {
  if (dtype == DType::kF64) return value;
  if (dtype == DType::kI32) return static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(value)));
  return static_cast<float>(value);
}

inline double load(const std::byte* base, int64_t i, DType dtype) {
  const std::byte* at = base + i * size_of(dtype);
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return read(float{});
    case DType::kF64:
      return read(double{});
    case DType::kI32:
      return read(int32_t{});
    case DType::kBF16: {
      const uint32_t bits = uint32_t{read(uint16_t{})} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    default:
      throw std::logic_error("the oracle has no such dtype");
  }
}

inline void store(std::byte* base, int64_t i, DType dtype, double value) {
  std::byte* at = base + i * size_of(dtype);
  const auto write = [at](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kF32:
      return write(static_cast<float>(value));
    case DType::kF64:
      return write(value);
    case DType::kI32:
      return write(static_cast<int32_t>(value));
    case DType::kBF16: {  // to nearest, ties to even
      const auto single = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &single, sizeof(bits));
      return write(static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
    }
    default:
      throw std::logic_error("the oracle has no such dtype");
  }
}

inline double combine(double a, double b, DType wide, ReduceOp op) {
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (wide == DType::kF32) return static_cast<float>(a) + static_cast<float>(b);
  return rounded(a + b, wide);
}

inline double divided(double sum, double divisor, DType wide) {
  if (wide == DType::kF32) return static_cast<float>(sum) / static_cast<float>(divisor);
  return rounded(sum / divisor, wide);
}

// Element `i` of all ranks' tensors, folded from rank `first` upwards (and round), finished, into element `i` of `out`.
inline void fold_serially(const std::vector<const std::byte*>& tensors, int64_t i, int first, DType dtype, ReduceOp op,
                          std::byte* out) {
  const int world = static_cast<int>(tensors.size());
  const DType wide = wide_of(dtype);
  double sum = load(tensors[first], i, dtype);
  for (int k = 1; k < world; ++k) sum = combine(sum, load(tensors[(first + k) % world], i, dtype), wide, op);
  if (op == ReduceOp::kAvg) sum = divided(sum, world, wide);
  store(out, i, dtype, sum);
}

// The same, in the order of a binomial tree to `root`: pairs at distance 1, then pairs of pairs at distance 2, ...
inline void fold_as_tree(const std::vector<const std::byte*>& tensors, int64_t i, int root, DType dtype, ReduceOp op,
                         std::byte* out) {
  const size_t world = tensors.size();
  const DType wide = wide_of(dtype);
  std::vector<double> sums;
  for (size_t v = 0; v < world; ++v) sums.push_back(load(tensors[(root + v) % world], i, dtype));
  for (size_t distance = 1; distance < world; distance *= 2) {
    for (size_t v = 0; v + distance < world; v += 2 * distance) {
      sums[v] = combine(sums[v], sums[v + distance], wide, op);
    }
  }
  store(out, i, dtype, op == ReduceOp::kAvg ? divided(sums[0], static_cast<double>(world), wide) : sums[0]);
}

// The sum of element `i` of the tensors begin..end-1 along the balanced tree, by its definition.
inline double along_balanced_tree(const std::vector<const std::byte*>& tensors, int begin, int end, int64_t i,
                                  DType dtype) {
  if (end - begin == 1) return load(tensors[begin], i, dtype);
  const int middle = begin + (end - begin + 1) / 2;
  return combine(along_balanced_tree(tensors, begin, middle, i, dtype),
                 along_balanced_tree(tensors, middle, end, i, dtype), wide_of(dtype), ReduceOp::kSum);
}

// What order=tree gives; `op` is SUM or AVG.
inline void fold_as_balanced_tree(const std::vector<const std::byte*>& tensors, int64_t i, DType dtype, ReduceOp op,
                                  std::byte* out) {
  const int world = static_cast<int>(tensors.size());
  const double sum = along_balanced_tree(tensors, 0, world, i, dtype);
  store(out, i, dtype, op == ReduceOp::kAvg ? divided(sum, world, wide_of(dtype)) : sum);
}

// Values of very different size, so that the order of a sum shows in its bits.
inline Bytes random_tensor(int64_t count, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes tensor(count * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(random());
    const double scale = dtype == DType::kI32 ? 1.0 : 1.0 / static_cast<double>(1ll << (20 + random() % 16));
    store(tensor.data(), i, dtype, bits * scale);
  }
  return tensor;
}

// ---- wire types, on kernels/codec_reference.h

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

// Everyone's tensor through the wire, folded in rank order in the wide type and divided; then, in an all_reduce,
// through the wire once more.
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
