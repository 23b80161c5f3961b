#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

PlanKernels bfloat16_sums() { return plan_kernels<BFloat16, Sum>(); }

}  // namespace ringdp::gpu
