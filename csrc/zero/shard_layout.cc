#include "zero/shard_layout.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ringdp::zero {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "shard layout: " + what); }

void check(const std::vector<int64_t>& lengths, const reducer::Layout& buckets, int ranks) {
  if (ranks < 1) refuse(std::to_string(ranks) + " ranks; there must be at least 1");
  std::vector<int> seen(lengths.size(), 0);
  for (const auto& members : buckets) {
    for (const size_t parameter : members) {
      const std::string name = "parameter " + std::to_string(parameter);
      if (parameter >= lengths.size()) refuse("a bucket holds " + name + ", which is unknown");
      ++seen[parameter];
    }
  }
  for (size_t parameter = 0; parameter < seen.size(); ++parameter) {
    if (seen[parameter] == 1) continue;
    const std::string buckets_of = std::to_string(seen[parameter]) + " buckets";
    refuse("parameter " + std::to_string(parameter) + " is in " + buckets_of + ", must be in one");
  }
}

}  // namespace

ShardLayout::ShardLayout(std::vector<int64_t> lengths, reducer::Layout buckets, int ranks)
    : lengths_(std::move(lengths)), buckets_(std::move(buckets)), ranks_(ranks) {
  check(lengths_, buckets_, ranks_);
  for (const auto& members : buckets_) {
    std::vector<int64_t> of_bucket;
    for (const size_t parameter : members) of_bucket.push_back(lengths_[parameter]);
    extents_.push_back(reducer::place(of_bucket, kShardBlock, kShardBlock * ranks_));
  }
}

std::vector<Piece> ShardLayout::pieces(int rank) const {
  if (rank < 0 || rank >= ranks_) refuse("rank " + std::to_string(rank) + " of " + std::to_string(ranks_));
  std::vector<Piece> pieces;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const int64_t from = rank * shard(bucket), to = from + shard(bucket);
    for (size_t position = 0; position < buckets_[bucket].size(); ++position) {
      const size_t parameter = buckets_[bucket][position];
      const int64_t offset = extents_[bucket].offsets[position];
      const int64_t begin = std::max(from, offset), end = std::min(to, offset + lengths_[parameter]);
      if (begin < end) pieces.push_back({parameter, begin - offset, end - begin, bucket, begin - from});
    }
  }
  return pieces;
}

int64_t ShardLayout::padding(int rank) const {
  int64_t padding = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) padding += shard(bucket);
  for (const Piece& piece : pieces(rank)) padding -= piece.length;
  return padding;
}

}  // namespace ringdp::zero
