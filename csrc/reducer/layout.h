// Which parameters share a bucket and in which order buckets are launched: a pure function of sizes.
//
// A bucket holds gradients of one kind (dtype and device) and is full when it has reached its limit in bytes. A
// parameter is never split, so B bytes of one kind take about B / limit collectives. A gradient that reaches the limit
// by itself gets its own bucket, so that it can be reduced in place (bucket.h). Buckets are sorted by when their last
// gradient is expected; they are launched in that order. Ranks with equal arguments have equal layouts.
// Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringdp::reducer {

// One parameter's gradient.
struct Part {
  int64_t bytes = 0;
  int64_t kind = 0;         // equal for gradients that may share a bucket
  bool own_bucket = false;  // shares its bucket with no other: a sparse gradient, or one reduced in place
};

using Layout = std::vector<std::vector<size_t>>;  // [bucket][position]: index of a parameter

// `order`: indices into `parts`, as gradients are expected to arrive. `limits` (not empty): bytes at which the first,
// second, ... bucket of a kind is full; the last one applies to all further buckets. 0: a bucket per parameter.
// `hard_limits`: gradients that share a bucket never exceed its limit; otherwise the last one may, as in torch.
Layout make_layout(const std::vector<Part>& parts, const std::vector<size_t>& order, const std::vector<int64_t>& limits,
                   bool hard_limits = false);

// Where the gradients (or parameters) of one bucket are in its memory, in elements.
struct Extent {
  std::vector<int64_t> offsets;
  int64_t end = 0;     // of the last one
  int64_t padded = 0;  // of memory
};

// Every offset is a multiple of `alignment`, and the length of the memory is a multiple of `granularity`.
Extent place(const std::vector<int64_t>& lengths, int64_t alignment, int64_t granularity);

}  // namespace ringdp::reducer
