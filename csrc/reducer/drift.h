// Whether all ranks still hold the same parameters, and whether gradients were averaged as they were given.
//
// A checksum of each bucket's parameters, taken as the bucket is launched, travels in the header of its collective: a
// bit that flips in a parameter, in the state of an optimizer or in a gradient after it was averaged makes parameters
// differ in the next step, where the checksums ("digests" in comm/) differ. A bit that flips before the sum makes all
// ranks equally wrong, and so does one that flips in a mean on its way to the only rank that steps it (ZeRO): at the
// end of a pass one all_reduce compares checksums of what each rank gave to a bucket with those of what was summed, and
// of the mean as it was computed with those of what each rank got (collective/contributions.h). Not checked are
// gradients that are wrong before their bucket is launched, means and states that only one rank holds, after the pass,
// parameters that need no gradient, buffers, and buckets with a communication hook. Guarded by the reducer's lock.
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

  // Begins a pass and forgets the one before.
  void begin(size_t buckets) { buckets_.assign(buckets, {}); }

  // Takes the checksums that travel with the collective of bucket `number` over `flat`, its memory or a tensor of that
  // size. Parameters are on the CPU. `agreed`: of something else that must be equal on all ranks; 0: of nothing.
  Mean::DigestsPtr take(size_t number, const Bucket& bucket, const at::Tensor& flat, uint64_t agreed);

  // The same on a joined rank, whose parameters are out of date: takes no checksum of them.
  Mean::DigestsPtr abstain(size_t number, const Bucket& bucket, const at::Tensor& flat);

  // Call when that collective is done, on all ranks in the same order; `mean` is its result. If checksums of parameters
  // differ, one all_gather finds the parameter, and every rank throws a RuntimeError that names the step, the ranks
  // whose bits differ from the majority, the bucket and the first such parameter. Returns false where parameters are
  // equal, and `agreed` is not.
  bool check(size_t number, const Bucket& bucket, const at::Tensor& mean, int64_t step, c10d::ProcessGroup& group);

  // Call when all buckets are done. Collective if checksums of any bucket were taken. Every rank throws a RuntimeError
  // that names the step, the rank and the bucket whose sum differs from what was given, or whose mean from what was
  // computed.
  void check_sums(const std::vector<Bucket>& buckets, int64_t step, c10d::ProcessGroup& group);

 private:
  struct BucketChecksums {
    Mean::DigestsPtr digests;    // null: none in this pass
    std::vector<uint64_t> sums;  // one per parameter
    uint64_t given = 0;          // checksum of this rank's gradients
    uint64_t held = 0;           // of what this rank got of the mean
    int64_t elements = 0;        // of these gradients
    uint64_t agreed = 0;
  };
  BucketChecksums& begin_bucket(size_t number, const at::Tensor& flat);
  const std::vector<std::string>& names_;
  std::vector<BucketChecksums> buckets_;
};

// Ranks that do not have the value of the majority (more than half); all ranks if there is no majority. Ranks with the
// value 0 do not vote. Empty if all agree.
std::vector<int> odd_ranks(const std::vector<uint64_t>& by_rank);

}  // namespace ringdp::reducer
