// The gradients of the micro-batches of a step (leaves), summed along the tree of plan/leaf_tree.h: the same bits for
// every number of ranks, whoever computes which leaf.
//
// A rank adds its leaves up to their roots as they come, per bucket, and holds one flat tensor per root: in the
// gradients' type for a root of one leaf, in float32 for a sum of 16-bit gradients. In the end shard r of every rank's
// roots is moved to rank r, which adds them up along the same tree, divides once and rounds once; then the shards are
// gathered, unless buckets are sharded (ZeRO stage 2). Works over any c10d group. Not thread-safe: the reducer's lock
// is held.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <string>
#include <vector>

#include "plan/leaf_tree.h"
#include "reducer/bucket.h"

namespace ringdp::reducer {

class LeafSums {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  // Shards of buckets with this granularity begin at whole cache lines in every type.
  static int64_t granularity(int ranks) { return int64_t{64} * ranks; }

  explicit LeafSums(int micro_batches) : micro_batches_(micro_batches) {}

  // Takes the .grad of all parameters, which are undefined afterwards, as the gradients of `leaf`. An absent gradient
  // stays absent: it changes no sum. RuntimeError names (from `names`) a gradient that does not fit its bucket.
  void add(int leaf, const std::vector<Bucket>& buckets, const std::vector<std::string>& names);

  // The means of all ranks' leaves, one flat tensor per bucket, or this rank's part of it if the bucket is sharded;
  // undefined for a bucket without elements. Drops the sums. `leaves`: those of each rank, by which
  // every rank knows all roots. Collective; `launched` and `done` are called with each bucket's number.
  std::vector<at::Tensor> average(const GroupPtr& group, const std::vector<Bucket>& buckets,
                                  const std::vector<std::vector<int>>& leaves, double divisor,
                                  const std::function<void(size_t)>& launched, const std::function<void(size_t)>& done);

  void drop();
  std::vector<bool> used(size_t parameters) const;  // by parameter: a leaf had a gradient
  int64_t bytes() const;                            // held at the moment

 private:
  struct Sum {
    plan::LeafNode node;
    at::Tensor flat;  // real numbers
  };

  at::Tensor take(const Bucket& bucket, const std::vector<std::string>& names);
  void merge(std::vector<Sum>& held, const Bucket& bucket, Sum added, plan::LeafNode root);

  const int micro_batches_;
  std::vector<int> leaves_;
  std::vector<std::vector<Sum>> held_;  // by bucket
  std::vector<bool> used_;
};

}  // namespace ringdp::reducer
