// Cuts an extent of elements into segments, the pipelining unit of link plans. Pure arithmetic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace ringdp::plan {

// A plan of more steps than this costs more to build than larger segments cost in overlap.
constexpr int64_t kMaxSegments = 4096;

// Elements per segment: what fits in `segment_bytes`, or more if `count` would need over `max_segments`; at least 1.
int64_t segment_elements(int64_t count, DType dtype, int64_t segment_bytes, int64_t max_segments = kMaxSegments);

// Elements of the longest one.
int64_t longest(const std::vector<Extent>& extents);

// Segment `k` of `whole`; empty beyond its end.
inline Extent segment(Extent whole, int64_t elements, int64_t k) {
  return {std::min(whole.begin + k * elements, whole.end), std::min(whole.begin + (k + 1) * elements, whole.end)};
}

}  // namespace ringdp::plan
