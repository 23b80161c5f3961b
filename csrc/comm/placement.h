// Which collectives access tensors in the heaps without copying. Each rank's header contains the offsets of its tensors
// in its heap, and all ranks apply one rule to all headers, so they decide the same. Ranks may allocate in any order.
#pragma once
#include <optional>
#include <vector>

#include "collective/executor.h"
#include "plan/plan.h"
#include "transport/arena.h"

namespace ringdp::comm {

// The offsets of one rank's tensors in its heap, in bytes; kElsewhere unless all of them lie there, without gaps.
struct Placement {
  static constexpr int64_t kElsewhere = -1;
  static constexpr int kMostRoots = 7;  // of one rank, for which there is room in a header
  static constexpr int64_t kLineBytes = 64;
  int64_t inputs = kElsewhere;
  int64_t output = kElsewhere;
  int64_t part = 0;                   // of an all_to_all: the elements of each part
  std::vector<int64_t> further = {};  // of the roots behind the first, which begin at whole cache lines
};

// The placement of this rank's tensors. Buffers are in the order of plan.h.
Placement place(const plan::Problem& problem, const collective::Buffers& buffers, const transport::Arena& arena);

// Whether the placement of `rank` allows the collective to run in heaps. If not, that rank need not wait for the
// others' headers. `heap_bytes`: of each heap.
bool allows_heaps(const plan::Problem& problem, int rank, const Placement& placement, int64_t heap_bytes);

// Where this process maps the tensors of all ranks, by rank; nullopt unless every placement allows it. Placements come
// from other processes, so those outside the heap are refused.
std::optional<std::vector<collective::PeerTensors>> locate(const plan::Problem& problem,
                                                           const std::vector<Placement>& placements,
                                                           const transport::Arena& arena);

}  // namespace ringdp::comm
