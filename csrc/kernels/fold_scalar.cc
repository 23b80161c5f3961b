// The compiler's baseline: SSE2 on x86-64, NEON on aarch64.
#include "kernels/fold_loops.h"
#include "kernels/isa_baseline.h"

namespace ringdp::kernels {

Kernel pick_scalar_kernel(const KernelKey& key) { return Picker<Baseline>::pick(key); }

}  // namespace ringdp::kernels
