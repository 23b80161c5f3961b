#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels float32_sums() { return plan_kernels<float, Sum>(); }

}  // namespace ringdp::gpu
