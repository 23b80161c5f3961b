// The kernels that run a plan: two per element type, reduce op and number of ranks, for the .cu file of each type.
#pragma once
#include "device/cuda/cuda_primitives.h"
#include "device/cuda/kernel_table.h"
#include "device/kernel/element.h"
#include "device/kernel/run_steps.h"

namespace ringdp::gpu {

// One block per multiprocessor: its 512 threads then have 128 registers each, for the loads in flight.
template <class T, class Op, int kRanks, class SomeWork>
__global__ void __launch_bounds__(kThreads, 1) plan_kernel(const __grid_constant__ SomeWork work) {
  run_steps<CudaPrimitives, T, Op, kRanks>(work);
}

template <class T, class Op, int kRanks>
PlanKernel plan_kernel_of() {
  return {address_of(plan_kernel<T, Op, kRanks, ShortWork>), address_of(plan_kernel<T, Op, kRanks, Work>)};
}

template <class T, class Op>
PlanKernels plan_kernels() {
  return {plan_kernel_of<T, Op, 1>(), plan_kernel_of<T, Op, 2>(), plan_kernel_of<T, Op, 3>(),
          plan_kernel_of<T, Op, 4>(), plan_kernel_of<T, Op, 5>(), plan_kernel_of<T, Op, 6>(),
          plan_kernel_of<T, Op, 7>(), plan_kernel_of<T, Op, 8>()};
}

}  // namespace ringdp::gpu
