// Which kernel serves which element type, reduce op and number of ranks.
//
// There are kernels for sums; moves of any type use float32's; all other reductions go through host memory.
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/cuda/driver.h"
#include "device/kernel/work.h"

namespace ringdp::gpu {

using KernelsByWorld = std::array<const void*, plan::kMaxDeviceRanks>;  // of 1 rank first

// One plan kernel in two versions, which differ by their argument.
struct PlanKernel {
  const void *few, *many;  // of a ShortWork, and of a Work
};
using PlanKernels = std::array<PlanKernel, plan::kMaxDeviceRanks>;

template <class Argument>
const void* address_of(void (*kernel)(Argument)) {
  return reinterpret_cast<const void*>(kernel);
}

// One .cu file each, so that they compile in parallel.
PlanKernels float32_sums();
PlanKernels float16_sums();
PlanKernels bfloat16_sums();
PlanKernels float64_sums();
PlanKernels int32_sums();
PlanKernels int64_sums();
KernelsByWorld adam_kernels();
std::vector<const void*> abort_kernels();                   // poison, and words in messages
const void* codec_kernel_for(DType element, bool encodes);  // of float32, float16, bfloat16, float64

struct NamedKernels {
  std::string name;
  std::vector<const void*> kernels;
};
const std::vector<NamedKernels>& all_kernels();

// Whether there is a kernel for this reduction.
bool reduces(DType element, ReduceOp reduce);

// Throws Failure, which lists the supported types, when there is no kernel.
PlanKernel plan_kernel_for(DType element, ReduceOp reduce, int world);

// Launches one kernel on a stream.
template <class Argument>
void launch(const char* what, const void* kernel, int blocks, const Argument& argument, cudaStream_t stream) {
  void* arguments[] = {const_cast<Argument*>(&argument)};
  const auto typed = reinterpret_cast<void (*)(Argument)>(const_cast<void*>(kernel));
  check(std::string("launching ") + what, cudaLaunchKernel(typed, dim3(blocks), dim3(kThreads), arguments, 0, stream),
        "the stream must be of the thread's current device");
}

// Launches the version that takes the fewest bytes.
void launch_plan(const char* what, const PlanKernel& kernel, int blocks, const Work& work, cudaStream_t stream);

// The number of blocks that the current device can run at once. Asked of the driver once.
int blocks_of_device(const void* kernel);

// Whether the stream records a graph instead of running.
bool is_capturing(cudaStream_t stream);

}  // namespace ringdp::gpu
