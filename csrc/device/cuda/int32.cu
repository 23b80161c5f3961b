#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels int32_sums() { return plan_kernels<int32_t, Sum>(); }

}  // namespace ringdp::gpu
