// Checksums of what a rank has summed of every rank's contribution, and of the results. Added up over the ranks they
// equal the checksum that each owner took, unless a contribution has changed between its owner's memory and the sum,
// and that of the result on every rank, unless that has changed since it was computed.
//
// In every algorithm some rank reads each contribution raw, once for each time it is summed: as a source of a fold that
// is not a partial sum, or of an encoding. Partial sums and encoded bytes are not checksummed.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace ringdp::collective {

struct Contributions {
  std::vector<uint64_t> sums;     // by rank: kernels::unordered_checksum of its elements that were read here
  std::vector<int64_t> elements;  // by rank: how many elements those are
  uint64_t result = 0;            // of the elements of the result that were computed here
  int64_t result_elements = 0;
};

// Reads the sources of one plan's steps, and the results, as it runs.
class ContributionReader {
 public:
  // `members`: group ranks of the arena's members. All three must outlive the reader. Driver only.
  ContributionReader(const plan::Plan& plan, const std::vector<int>& members, Contributions& into);

  // Call right before a fold or encoding: `at` holds `count` elements of its source `ref`.
  void read(const plan::Ref& ref, const void* at, int64_t count);

  // Call right after a fold or decoding: `at` holds `count` elements of its first destination.
  void wrote(const plan::Step& step, const void* at, int64_t count);

 private:
  int rank_of(const plan::Ref& ref) const;  // whose contribution

  const plan::Plan& plan_;
  const std::vector<int>& members_;
  Contributions& into_;
  std::map<int64_t, int> senders_;  // by offset in scratch memory: who sends what a link brings there
};

}  // namespace ringdp::collective
