// The kernel that runs a plan: one per element type, reduce op and number of ranks, for the .cu file of each type.
#pragma once
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/element.h"
#include "device/kernel/run_steps.h"

namespace ringdp::gpu {

// One block per multiprocessor: its 512 threads then have 128 registers each, for the loads in flight.
template <class T, class Op, int kRanks>
__global__ void __launch_bounds__(kThreads, 1) plan_kernel(const __grid_constant__ Work work) {
  run_steps<CudaPrimitives, T, Op, kRanks>(work);
}

template <class T, class Op>
KernelsByWorld plan_kernels() {
  return {address_of(plan_kernel<T, Op, 1>), address_of(plan_kernel<T, Op, 2>), address_of(plan_kernel<T, Op, 3>),
          address_of(plan_kernel<T, Op, 4>), address_of(plan_kernel<T, Op, 5>), address_of(plan_kernel<T, Op, 6>),
          address_of(plan_kernel<T, Op, 7>), address_of(plan_kernel<T, Op, 8>)};
}

}  // namespace ringdp::gpu
