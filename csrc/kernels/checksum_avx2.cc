#include "kernels/checksum.h"
#include "kernels/checksum_loop.h"

namespace ringdp::kernels {

uint64_t avx2_unordered_checksum(const void* elements, int64_t count, int64_t element_bytes) {
  return sum_by_size(elements, count, element_bytes);
}

}  // namespace ringdp::kernels
