#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels float16_sums() { return plan_kernels<Half, Sum>(); }

}  // namespace ringdp::gpu
