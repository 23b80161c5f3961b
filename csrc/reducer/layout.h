// Which parameters share a bucket and in which order buckets are launched: a pure function of sizes.
//
// A bucket holds gradients of one kind (dtype and device) and is full once it has as many bytes as its limit; a
// parameter is never split, so a kind of B bytes travels in about B / limit collectives. A gradient that fills a bucket by
// itself gets one, so that it can be reduced where it lies (bucket.h). Buckets stand in the order in which their last
// gradient is expected, which is the order of launching. Equal arguments give equal layouts, so ranks
// that agree on the arguments agree on the layout. Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringdp::reducer {

// One parameter's gradient.
struct Part {
  int64_t bytes = 0;
  int64_t kind = 0;    // equal for gradients that may share a bucket
  bool alone = false;  // never shares one: a sparse gradient
};

using Layout = std::vector<std::vector<size_t>>;  // [bucket][position]: index of a parameter

// `order`: indices into `parts`, as gradients are expected to arrive. `limits` (not empty): bytes at which the first,
// second, ... bucket of a kind is full; the last one holds for all that follow. 0: a bucket per parameter.
Layout make_layout(const std::vector<Part>& parts, const std::vector<size_t>& order, const std::vector<int64_t>& limits);

}  // namespace ringdp::reducer
