#include "gpu/cuda/kernel_table.h"

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

std::vector<NamedKernels> named_kernels() {
  std::vector<NamedKernels> named;
  for (const Sums& sums : kSums) named.push_back({std::string("plan ") + name_of(sums.element), sums.kernels()});
  named.push_back({"adam float32", adam_kernels()});
  return named;
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

const void* plan_kernel_for(DType element, ReduceOp reduce, int world) {
  const bool adds = reduce == ReduceOp::kSum || reduce == ReduceOp::kAvg;
  for (const Sums& sums : kSums) {
    if (adds && sums.element == element) return sums.kernels()[world - 1];
  }
  refuse(std::string("rd_gpu_run: no kernel for ") + name_of(reduce) + " on " + name_of(element) +
         "; kernels do SUM and AVG on " + served() + " and move any type; the rest goes through host memory");
}

}  // namespace ringdp::gpu
