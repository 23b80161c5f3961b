#include "plan/segment.h"

namespace ringdp::plan {

int64_t segment_elements(int64_t count, DType dtype, int64_t segment_bytes, int64_t max_segments) {
  const int64_t fitting = segment_bytes / size_of(dtype);
  const int64_t needed = ceil_div(count, std::max<int64_t>(max_segments, 1));
  return std::max<int64_t>({1, fitting, needed});
}

int64_t longest(const std::vector<Extent>& extents) {
  int64_t count = 0;
  for (const Extent& extent : extents) count = std::max(count, extent.count());
  return count;
}

}  // namespace ringdp::plan
