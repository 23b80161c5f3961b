// Whether all ranks still hold the same parameters: a checksum of each bucket's, taken as the bucket is launched, rides on
// the note of its collective.
//
// A bit that flips in a parameter, in the state of an optimizer or in a gradient after it was averaged makes parameters
// differ by the next step, and is found there. Not seen are parameters that need no gradient, buffers, and buckets that
// go through a communication hook. Guarded by the reducer's lock.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <vector>

#include "reducer/bucket.h"
#include "reducer/mean.h"

namespace ringdp::reducer {

class Drift {
 public:
  // `names` of all parameters of the reducer; must outlive this.
  explicit Drift(const std::vector<std::string>& names) : names_(names) {}

  // For the collective of bucket `number`. Parameters are on the CPU.
  Mean::DigestsPtr take(size_t number, const Bucket& bucket);

  // The same of a rank whose parameters have not been stepped with the others' (join).
  Mean::DigestsPtr abstain(size_t number, const Bucket& bucket);

  // Once that collective is done, on all ranks in the same order. RuntimeError on every rank names the step, the
  // ranks whose bits are not those of most, bucket and first parameter; finding that out is one all_gather.
  void check(size_t number, const Bucket& bucket, int64_t step, c10d::ProcessGroup& group);

 private:
  struct OfBucket {
    Mean::DigestsPtr digests;
    std::vector<uint64_t> sums;  // of each parameter
  };
  const std::vector<std::string>& names_;
  std::vector<OfBucket> buckets_;
};

// Ranks whose value is not the one that more than half of all have; every rank when there is no such value. A 0 takes no
// part. Empty: all agree.
std::vector<int> odd_ranks(const std::vector<uint64_t>& by_rank);

}  // namespace ringdp::reducer
