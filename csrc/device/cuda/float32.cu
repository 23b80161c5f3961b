#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

KernelsByWorld float32_sums() { return plan_kernels<float, Sum>(); }

}  // namespace ringdp::gpu
