#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels int64_sums() { return plan_kernels<int64_t, Sum>(); }

}  // namespace ringdp::gpu
