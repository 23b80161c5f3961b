#include "device/cuda/kernel_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/driver.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

struct Sums {
  DType element;
  PlanKernels (*kernels)();
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
  return {name, std::vector<const void*>(by_world.begin(), by_world.end())};  // braces would list the two iterators
}

NamedKernels plans_of(const Sums& sums) {
  NamedKernels all = {std::string("plan ") + name_of(sums.element), {}};
  for (const PlanKernel& kernel : sums.kernels()) {
    all.kernels.push_back(kernel.few);
    all.kernels.push_back(kernel.many);
  }
  return all;
}

std::vector<NamedKernels> named_kernels() {
  std::vector<NamedKernels> all;
  for (const Sums& sums : kSums) all.push_back(plans_of(sums));
  for (const Sums& sums : kSums) {
    if (!is_floating(sums.element)) continue;
    all.push_back({std::string("codec ") + name_of(sums.element),
                   {codec_kernel_for(sums.element, true), codec_kernel_for(sums.element, false)}});
  }
  all.push_back(named("adam float32", adam_kernels()));
  all.push_back({"abort", abort_kernels()});
  return all;
}

std::string served() {
  std::string names;
  for (const Sums& sums : kSums) names += (names.empty() ? "" : ", ") + std::string(name_of(sums.element));
  return names;
}

namespace {

struct Facts {
  int registers, spilled_bytes, blocks;
};

Facts facts_of(const void* kernel) {
  cudaFuncAttributes attributes;
  int blocks = 0;
  check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel),
        "rd_gpu_count says whether there is a device");
  check("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0));
  return {attributes.numRegs, static_cast<int>(attributes.localSizeBytes), blocks};
}

// Over all kernels of that name: the most registers and spilled bytes, the fewest blocks.
std::string line_of(const NamedKernels& kernels) {
  Facts worst = facts_of(kernels.kernels[0]);
  for (const void* const kernel : kernels.kernels) {
    const Facts facts = facts_of(kernel);
    worst = {std::max(worst.registers, facts.registers), std::max(worst.spilled_bytes, facts.spilled_bytes),
             std::min(worst.blocks, facts.blocks)};
  }
  return kernels.name + ": at most " + std::to_string(worst.registers) + " registers, " +
         std::to_string(worst.spilled_bytes) + " bytes spilled, at least " + std::to_string(worst.blocks) +
         " blocks a multiprocessor\n";
}

}  // namespace

}  // namespace

const std::vector<NamedKernels>& all_kernels() {
  static const std::vector<NamedKernels> kAll = named_kernels();
  return kAll;
}

bool reduces(DType element, ReduceOp reduce) { return sums_of(element, reduce) != nullptr; }

PlanKernel plan_kernel_for(DType element, ReduceOp reduce, int world) {
  if (const Sums* const sums = sums_of(element, reduce)) return sums->kernels()[world - 1];
  refuse(std::string("rd_gpu_run: no kernel for ") + name_of(reduce) + " on " + name_of(element) +
         "; kernels do SUM and AVG on " + served() + " and move any type; the rest goes through host memory");
}

void launch_plan(const char* what, const PlanKernel& kernel, int blocks, const Work& work, cudaStream_t stream) {
  if (work.steps > kFewSteps) return launch(what, kernel.many, blocks, work, stream);
  ShortWork few;
  static_cast<WorkHead&>(few) = work;
  std::copy_n(work.step, work.steps, few.step);
  launch(what, kernel.few, blocks, few, stream);
}

int blocks_of_device(const void* kernel) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> known;
  int device = 0, multiprocessors = 0, each = 0;
  check("cudaGetDevice", cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({device, kernel}); found != known.end()) return found->second;
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  check("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, 0));
  return known[{device, kernel}] = multiprocessors * (each > 0 ? each : 1);
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace ringdp::gpu

int rd_gpu_kernels(char* text, size_t bytes) {
  using namespace ringdp::gpu;
  return guarded([&] {
    refuse_null("rd_gpu_kernels", "text", text);
    std::string lines;
    for (const NamedKernels& kernels : all_kernels()) lines += line_of(kernels);
    if (lines.size() >= bytes) refuse("rd_gpu_kernels: give room for " + std::to_string(lines.size() + 1) + " bytes");
    std::memcpy(text, lines.c_str(), lines.size() + 1);
  });
}
