#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels float64_sums() { return plan_kernels<double, Sum>(); }

}  // namespace ringdp::gpu
