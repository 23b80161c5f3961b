#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

KernelsByWorld int32_sums() { return plan_kernels<int32_t, Sum>(); }

}  // namespace ringdp::gpu
