// How a reducer works; fixed when it is made, equal on all ranks.
#pragma once
#include <cstdint>
#include <vector>

namespace ringdp::reducer {

struct Options {
  std::vector<int64_t> bucket_limits;    // bytes, as make_layout() takes them
  bool find_unused = false;              // walk the graph before each backward pass
  bool gradient_as_bucket_view = false;  // .grad is the view in the bucket: one copy of the gradients
  bool batched_copy = false;             // copy a bucket's gradients together when the last one has arrived
  bool skip_unused = false;              // buckets of unused parameters do not travel: all ranks must agree on them
  bool overlap = true;                   // false: after the backward pass, one blocking collective per bucket
  bool rank_order = true;                // false: the backend's own order, where it has no fused mean
};

}  // namespace ringdp::reducer
