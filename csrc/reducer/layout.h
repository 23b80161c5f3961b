// Which parameters share a bucket and in which order buckets are launched: a pure function of sizes.
//
// A bucket holds gradients of one kind (dtype and device) and is full once it has as many bytes as its limit; a
// parameter is never split, so a kind of B bytes travels in about B / limit collectives. A gradient that fills a bucket
// by itself gets one, so that it can be reduced where it lies (bucket.h). Buckets stand in the order in which their
// last gradient is expected, which is the order of launching. Ranks with equal arguments have equal layouts.
// Thread-safe.
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
// `never_beyond`: gradients that share a bucket have no more bytes than its limit, else the last one may go beyond it,
// as torch's does.
Layout make_layout(const std::vector<Part>& parts, const std::vector<size_t>& order, const std::vector<int64_t>& limits,
                   bool never_beyond = false);

// Where the gradients (or parameters) of one bucket lie in its memory, in elements.
struct Extent {
  std::vector<int64_t> offsets;
  int64_t end = 0;     // of the last one
  int64_t padded = 0;  // of memory
};

// Every one begins at a multiple of `alignment`, and memory is a multiple of `granularity` long.
Extent place(const std::vector<int64_t>& lengths, int64_t alignment, int64_t granularity);

}  // namespace ringdp::reducer
