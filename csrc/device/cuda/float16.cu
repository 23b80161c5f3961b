#include "device/cuda/plan_kernel.h"

namespace ringdp::gpu {

KernelsByWorld float16_sums() { return plan_kernels<Half, Sum>(); }

}  // namespace ringdp::gpu
