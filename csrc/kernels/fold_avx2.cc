// AVX2 with F16C. Only called where dispatch.cc found both.
#include "kernels/fold_loops.h"
#include "kernels/isa_avx2.h"

namespace ringdp::kernels {

Kernel pick_avx2_kernel(const KernelKey& key) { return Picker<Avx2>::pick(key); }

}  // namespace ringdp::kernels
