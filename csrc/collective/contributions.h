// What a rank has summed of every rank's contribution, as checksums. Added up over the ranks they are what each rank
// says it gave, unless a contribution has changed between its owner's memory and the sum.
//
// Every contribution is read raw by some rank in every algorithm, as often as it is summed: a source of a fold that is
// not a partial sum, or what is encoded for the wire. Partial sums and encoded bytes are not looked at again.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace ringdp::collective {

struct Contributions {
  std::vector<uint64_t> sums;     // by rank: kernels::unordered_checksum of its elements that were read here
  std::vector<int64_t> elements;  // by rank: how many; a plan that sums on all ranks reads each on all
};

// Reads the sources of one plan's steps as it runs.
class ContributionReader {
 public:
  // `members`: ranks of the arena's members. Both must outlive the reader, and `into` the plan's run.
  ContributionReader(const plan::Plan& plan, const std::vector<int>& members, Contributions& into);

  // `at`: where `count` elements of source `ref` of a fold or an encoding lie, which happens next.
  void read(const plan::Ref& ref, const void* at, int64_t count);

 private:
  int rank_of(const plan::Ref& ref) const;  // whose contribution

  const plan::Plan& plan_;
  const std::vector<int>& members_;
  Contributions& into_;
  std::map<int64_t, int> senders_;  // by offset in scratch memory: whose contribution a link brings there
};

}  // namespace ringdp::collective
