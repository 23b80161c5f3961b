// Which elements of which parameters a rank owns: a pure function of sizes.
//
// The parameters of a bucket are laid out one after the other, each from a multiple of kShardBlock on. The bucket is
// padded to a multiple of N blocks, and rank r owns the r-th of its N equal parts, its shard. So parameters are cut
// only at multiples of kShardBlock, and what is computed block by block (norms) does not depend on N. The reducer
// places gradients by the same rule (reducer/layout.h). All sizes are in elements. Immutable, so thread-safe.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/squares.h"
#include "reducer/layout.h"

namespace ringdp::zero {

constexpr int64_t kShardBlock = kernels::kSquareBlock;

// The part of one parameter that one rank owns; elements are counted in memory order.
struct Piece {
  size_t parameter = 0;
  int64_t begin = 0, length = 0;  // in the parameter
  size_t bucket = 0;
  int64_t offset = 0;  // in the rank's shard of the bucket
};

class ShardLayout {
 public:
  // `lengths`: of all parameters; `buckets`: their indices, each once. Error (InvalidArgument) if one is missing, twice
  // or unknown, or if `ranks` < 1.
  ShardLayout(std::vector<int64_t> lengths, reducer::Layout buckets, int ranks);

  int ranks() const { return ranks_; }
  const reducer::Layout& buckets() const { return buckets_; }
  int64_t padded(size_t bucket) const { return extents_.at(bucket).padded; }
  int64_t shard(size_t bucket) const { return padded(bucket) / ranks_; }
  const std::vector<int64_t>& offsets(size_t bucket) const { return extents_.at(bucket).offsets; }

  // The pieces that a rank owns, in the order of buckets and elements; none is empty.
  std::vector<Piece> pieces(int rank) const;

  // Elements of a rank's shards that hold no parameter.
  int64_t padding(int rank) const;

 private:
  std::vector<int64_t> lengths_;
  reducer::Layout buckets_;
  std::vector<reducer::Extent> extents_;
  int ranks_;
};

}  // namespace ringdp::zero
