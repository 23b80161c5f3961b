// Which kernel runs a device plan on host threads, what its tensors hold, and what they must hold afterwards.
#pragma once
#include "base/bytes.h"

#include "gpu/device/fold_op.h"
#include "gpu/device/host_group.h"
#include "kernels/fold.h"
#include "plan/device_cases.h"

namespace ringdp::gpu::testing {

template <class T, class Op>
RunKernel kernel_of(int world) {
  static constexpr RunKernel kKernels[] = {run_steps<HostPrim, T, Op, 1>, run_steps<HostPrim, T, Op, 2>,
                                           run_steps<HostPrim, T, Op, 3>, run_steps<HostPrim, T, Op, 4>,
                                           run_steps<HostPrim, T, Op, 5>, run_steps<HostPrim, T, Op, 6>,
                                           run_steps<HostPrim, T, Op, 7>, run_steps<HostPrim, T, Op, 8>};
  return kKernels[world - 1];
}

// Sums of the three kinds of element there are: own type, widened, integers.
inline RunKernel sum_kernel(DType dtype, int world) {
  if (dtype == DType::kBF16) return kernel_of<BFloat16, Sum>(world);
  if (dtype == DType::kU8) return kernel_of<uint8_t, Sum>(world);
  return kernel_of<float, Sum>(world);
}

// Numbers whose sum depends on its order; the same for the same seed.
inline void fill(char* to, DType dtype, int64_t count, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const float value = (static_cast<float>(random() % 2001) - 1000) * (random() % 2 ? 1e-3f : 0.7f);
      T element{};
      if constexpr (std::is_same_v<T, BFloat16>) {
        element.bits = static_cast<uint16_t>(bits_as<uint32_t>(value) >> 16);
      } else if constexpr (std::is_same_v<T, Half>) {
        element.bits = HostPrim::float_to_half(value);
      } else if constexpr (std::is_floating_point_v<T>) {
        element = static_cast<T>(value);
      } else {
        element = static_cast<T>(random());
      }
      if (dtype == DType::kBool) std::memset(&element, random() % 2, 1);
      std::memcpy(to + i * sizeof(T), &element, sizeof(T));
    }
  });
}

using Inputs = std::vector<std::vector<char>>;  // by rank

// The sum over `ranks`, in that order, of elements [begin, begin + count).
inline void fold_ranks(const plan::DevicePlan& plan, const Inputs& inputs, const std::vector<int>& ranks, int64_t begin,
                       int64_t count, double divisor, char* to) {
  std::vector<const void*> srcs;
  for (const int r : ranks) srcs.push_back(inputs[r].data() + begin * size_of(plan.dtype));
  void* dst = to;
  kernels::FoldArgs args;
  args.srcs = srcs.data();
  args.n_srcs = static_cast<int>(srcs.size());
  args.dsts = &dst;
  args.n_dsts = 1;
  args.count = count;
  args.dtype = plan.dtype;
  args.op = plan.op;
  args.divisor = divisor;
  kernels::fold(args);
}

// Ranks from `first` on, `way` at a time, all of them.
inline std::vector<int> ring_order(int world, int first, int way) {
  std::vector<int> ranks;
  for (int k = 0; k < world; ++k) ranks.push_back(((first + way * k) % world + world) % world);
  return ranks;
}

// Elements [begin, end) of a tensor in which they are chunk `c`: ring/rotated sums halves up and down from rank c, a
// reduce_scatter from one further on; everything else in rank order.
inline void fold_chunk(const plan::DevicePlan& plan, const Inputs& inputs, Extent chunk, int c, double divisor,
                       char* to) {
  if (plan.algorithm != "ring/rotated") {
    return fold_ranks(plan, inputs, ring_order(plan.world, 0, 1), chunk.begin, chunk.count(), divisor, to);
  }
  const int late = plan.what == plan::Collective::kReduceScatter ? 1 : 0;
  const int64_t pack = plan::pack_elements(plan.dtype);
  const Extent up = plan.world == 2 ? Extent{0, chunk.count()} : balanced_part(chunk.count(), 2, 0, pack);
  fold_ranks(plan, inputs, ring_order(plan.world, c + late, 1), chunk.begin, up.end, divisor, to);
  fold_ranks(plan, inputs, ring_order(plan.world, c - late, -1), chunk.begin + up.end, chunk.count() - up.end, divisor,
             to + up.end * size_of(plan.dtype));
}

// Elements of every rank's part, of a move.
inline int64_t part_of(const plan::DevicePlan& plan) {
  switch (plan.what) {
    case plan::Collective::kAllToAll: return plan.output / plan.world;
    case plan::Collective::kScatter: return plan.output;
    default: return plan.input;
  }
}

// What rank plan.rank's output must hold, where it has one.
inline std::vector<char> expected(const plan::DevicePlan& plan, const Inputs& inputs, int root, double divisor) {
  const int64_t size = size_of(plan.dtype), part = part_of(plan);
  std::vector<char> result(plan.output * size);
  const auto copy = [&](int64_t to, int from_rank, int64_t from, int64_t count) {
    std::copy_n(inputs[from_rank].begin() + from * size, count * size, result.begin() + to * size);
  };
  switch (plan.what) {
    case plan::Collective::kAllReduce:
    case plan::Collective::kReduce:
      for (int c = 0; c < plan.world; ++c) {
        const Extent chunk = balanced_part(plan.input, plan.world, c, plan::pack_elements(plan.dtype));
        fold_chunk(plan, inputs, chunk, c, divisor, result.data() + chunk.begin * size);
      }
      break;
    case plan::Collective::kReduceScatter:
      fold_chunk(plan, inputs, {plan.rank * plan.output, (plan.rank + 1) * plan.output}, plan.rank, divisor,
                 result.data());
      break;
    case plan::Collective::kBroadcast: copy(0, root, 0, plan.output); break;
    case plan::Collective::kScatter: copy(0, root, plan.rank * part, part); break;
    case plan::Collective::kAllGather:
    case plan::Collective::kGather:
      for (int r = 0; r < plan.world; ++r) copy(r * part, r, 0, part);
      break;
    case plan::Collective::kAllToAll:
      for (int r = 0; r < plan.world; ++r) copy(r * part, r, plan.rank * part, part);
      break;
    default: break;
  }
  return result;
}

}  // namespace ringdp::gpu::testing
