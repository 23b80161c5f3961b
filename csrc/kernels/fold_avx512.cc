// AVX-512 (F, BW, VL, DQ). Only called where dispatch.cc found them.
#include "kernels/fold_loops.h"
#include "kernels/isa_avx512.h"

namespace ringdp::kernels {

Kernel pick_avx512_kernel(const KernelKey& key) { return Picker<Avx512>::pick(key); }

}  // namespace ringdp::kernels
