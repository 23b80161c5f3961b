// The kernel that overwrites aborted results with NaN.
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/poison.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

// Each reads the abort word, which costs every call; only after a failure is anything written.
constexpr int kBlocks = 1;

__global__ void __launch_bounds__(kThreads) poison_kernel(const __grid_constant__ PoisonWork work) {
  run_poison<CudaPrimitives>(work);
}

void poison(void* memory, size_t bytes, const uint32_t* abort, cudaStream_t stream) {
  if (bytes == 0) return;
  refuse_null("rd_gpu_poison", "memory", memory);
  refuse_null("rd_gpu_poison", "abort", abort);
  const PoisonWork work = {static_cast<char*>(memory), static_cast<int64_t>(bytes), abort};
  launch("poison", poison_kernels()[0], kBlocks, work, stream);
}

}  // namespace

KernelsByWorld poison_kernels() {
  KernelsByWorld kernels;
  kernels.fill(address_of(poison_kernel));
  return kernels;
}

}  // namespace ringdp::gpu

int rd_gpu_poison(void* memory, size_t bytes, const uint32_t* abort, void* stream) {
  return ringdp::gpu::guarded([&] { ringdp::gpu::poison(memory, bytes, abort, static_cast<cudaStream_t>(stream)); });
}
