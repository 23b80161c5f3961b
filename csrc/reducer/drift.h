// Whether all ranks still hold the same parameters, and whether gradients were averaged as they were given.
//
// A checksum of each bucket's parameters, taken as the bucket is launched, travels in the header of its collective: a
// bit that flips in a parameter, in the state of an optimizer or in a gradient after it was averaged makes parameters
// differ by the next step, and is found there. A bit that flips before the sum makes all ranks equally wrong: at the
// end of a pass one all_reduce compares checksums of what each rank has given to a bucket and of what was summed of it
// (collective/contributions.h). Not seen are gradients that are wrong before their bucket is launched, parameters that
// need no gradient, buffers, and buckets that go through a communication hook. Guarded by the reducer's lock.
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

  // A pass begins; what an earlier pass has left is dropped.
  void begin(size_t buckets) { buckets_.assign(buckets, {}); }

  // For the collective of bucket `number` over `flat`, its memory or a stand-in. Parameters are on the CPU.
  Mean::DigestsPtr take(size_t number, const Bucket& bucket, const at::Tensor& flat);

  // The same on a rank that has joined, whose parameters are out of date.
  Mean::DigestsPtr abstain(size_t number, const Bucket& bucket, const at::Tensor& flat);

  // Once that collective is done, on all ranks in the same order. RuntimeError on every rank names the step, the
  // ranks whose bits differ from the majority, the bucket and the first parameter; this takes one all_gather.
  void check(size_t number, const Bucket& bucket, int64_t step, c10d::ProcessGroup& group);

  // Once all buckets are done, on all ranks: collective, if any bucket was taken. RuntimeError on every rank names the
  // step, the rank and the bucket.
  void check_sums(const std::vector<Bucket>& buckets, int64_t step, c10d::ProcessGroup& group);

 private:
  struct OfBucket {
    Mean::DigestsPtr digests;    // null: not taken in this pass
    std::vector<uint64_t> sums;  // one per parameter
    uint64_t given = 0;          // checksum of this rank's gradients
    int64_t elements = 0;        // number of these
  };
  OfBucket& begin_bucket(size_t number, const at::Tensor& flat);
  const std::vector<std::string>& names_;
  std::vector<OfBucket> buckets_;
};

// Ranks whose value is not the one that more than half of all ranks have; every rank when there is no such value. Ranks
// with the value 0 do not take part. Empty when all agree.
std::vector<int> odd_ranks(const std::vector<uint64_t>& by_rank);

}  // namespace ringdp::reducer
