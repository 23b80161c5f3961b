// Packs, which a thread loads and stores as a whole, and how the packs of a step are divided among blocks.
//
// Everything in this folder is header-only and compiled twice: by nvcc for kernels, and for tests on host threads by a
// host compiler that is told to read __device__ as nothing (-D__device__=).
#pragma once
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "device/plan/step.h"

namespace ringdp::gpu {

struct alignas(16) Pack {
  uint32_t words[4];
};
constexpr int64_t kPackBytes = sizeof(Pack);
static_assert(kPackBytes == plan::kDevicePackBytes);

template <class T>
constexpr int kLanes = kPackBytes / sizeof(T);

// The type in which sums of T are held (wide_of).
template <class T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<Half> {
  using type = float;
};
template <>
struct WideOf<BFloat16> {
  using type = float;
};
template <class T>
using Wide = typename WideOf<T>::type;

// Like std::bit_cast, which is C++20.
template <class To, class From>
__device__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to{};
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

struct PackRange {
  int64_t begin, end;
};

// Block `block`'s share of `packs`; sizes differ by at most one. It depends on nothing else, so block b of one rank
// reads what block b of another has written in a step of the same number of elements.
__device__ inline PackRange share_of_block(int64_t packs, int blocks, int block) {
  const int64_t base = packs / blocks, extra = packs % blocks;
  const int64_t begin = base * block + (block < extra ? block : extra);
  return {begin, begin + base + (block < extra ? 1 : 0)};
}

}  // namespace ringdp::gpu
