#include "gpu/cuda/kernel_table.h"

#include <algorithm>
#include <iterator>

#include "gpu/cuda/errors.h"

namespace ringdp::gpu {
namespace {

struct Sums {
  DType element;
  KernelsByWorld (*kernels)();
};
constexpr Sums kSums[] = {
    {DType::kF32, float32_sums}, {DType::kF16, float16_sums}, {DType::kBF16, bfloat16_sums},
    {DType::kF64, float64_sums}, {DType::kI32, int32_sums},   {DType::kI64, int64_sums},
};

const Sums* sums_of(DType element, ReduceOp reduce) {
  if (reduce != ReduceOp::kSum && reduce != ReduceOp::kAvg) return nullptr;
  const auto* const found =
      std::find_if(std::begin(kSums), std::end(kSums), [&](const Sums& sums) { return sums.element == element; });
  return found == std::end(kSums) ? nullptr : found;
}

NamedKernels named(const std::string& name, const KernelsByWorld& by_world) {
  return {name, {by_world.begin(), by_world.end()}};
}

std::vector<NamedKernels> named_kernels() {
  std::vector<NamedKernels> all;
  for (const Sums& sums : kSums) all.push_back(named(std::string("plan ") + name_of(sums.element), sums.kernels()));
  for (const Sums& sums : kSums) {
    if (!is_floating(sums.element)) continue;
    all.push_back({std::string("codec ") + name_of(sums.element),
                   {codec_kernel_for(sums.element, true), codec_kernel_for(sums.element, false)}});
  }
  all.push_back(named("adam float32", adam_kernels()));
  all.push_back(named("poison", poison_kernels()));
  return all;
}

std::string served() {
  std::string names;
  for (const Sums& sums : kSums) names += (names.empty() ? "" : ", ") + std::string(name_of(sums.element));
  return names;
}

}  // namespace

const std::vector<NamedKernels>& all_kernels() {
  static const std::vector<NamedKernels> kAll = named_kernels();
  return kAll;
}

bool reduces(DType element, ReduceOp reduce) { return sums_of(element, reduce) != nullptr; }

const void* plan_kernel_for(DType element, ReduceOp reduce, int world) {
  if (const Sums* const sums = sums_of(element, reduce)) return sums->kernels()[world - 1];
  refuse(std::string("rd_gpu_run: no kernel for ") + name_of(reduce) + " on " + name_of(element) +
         "; kernels do SUM and AVG on " + served() + " and move any type; the rest goes through host memory");
}

}  // namespace ringdp::gpu
