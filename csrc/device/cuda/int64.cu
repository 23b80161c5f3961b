#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

KernelsByWorld int64_sums() { return plan_kernels<int64_t, Sum>(); }

}  // namespace ringdp::gpu
