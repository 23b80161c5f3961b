// How a reducer works; fixed when it is made, equal on all ranks.
#pragma once
#include <cstdint>
#include <vector>

#include "reducer/layout.h"

namespace ringdp::reducer {

struct Options {
  std::vector<int64_t> bucket_limits;    // bytes, as make_layout() takes them; with shards never to be exceeded
  bool find_unused = false;              // walk the graph before each backward pass
  bool gradient_as_bucket_view = false;  // .grad is the view in the bucket: one copy of the gradients
  bool batched_copy = false;             // copy a bucket's gradients together when the last one has arrived
  bool skip_unused = false;              // buckets of unused parameters do not travel: all ranks must agree on them
  bool overlap = true;                   // false: after the backward pass, one blocking collective per bucket
  int64_t shard_block = 0;               // > 0: ZeRO stage 2; ranks own parts of buckets that are multiples of it long
  bool rank_order = true;                // false: the backend's own order, where it has no fused mean
  bool check_drift = false;              // every rank's parameters are compared in every pass (drift.h)
  bool alone = false;                    // made by one rank for itself: ranks do nothing together before a rebuild
  Layout layout;                         // for good, each parameter once; empty: bucket_limits decide
};

}  // namespace ringdp::reducer
