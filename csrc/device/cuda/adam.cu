// The fused step of ZeRO as a kernel.
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/adam.h"

namespace ringdp::gpu {
namespace {

template <int kRanks>
__global__ void __launch_bounds__(kThreads, 1) adam_kernel(const __grid_constant__ AdamWork work) {
  run_adam<CudaPrimitives, kRanks>(work);
}

}  // namespace

KernelsByWorld adam_kernels() {
  return {address_of(adam_kernel<1>), address_of(adam_kernel<2>), address_of(adam_kernel<3>),
          address_of(adam_kernel<4>), address_of(adam_kernel<5>), address_of(adam_kernel<6>),
          address_of(adam_kernel<7>), address_of(adam_kernel<8>)};
}

}  // namespace ringdp::gpu
