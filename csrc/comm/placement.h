// Which collectives run on tensors where they lie: each rank says in its note where its tensors are in its heap, and one
// rule over all notes decides, so that all ranks decide alike. No rank needs to allocate in step with the others.
#pragma once
#include <optional>
#include <vector>

#include "collective/executor.h"
#include "plan/plan.h"
#include "transport/arena.h"

namespace ringdp::comm {

// Where one rank's tensors lie in its heap, in bytes from its start; kElsewhere unless all of them do, end to end.
struct Placement {
  static constexpr int64_t kElsewhere = -1;
  int64_t inputs = kElsewhere;
  int64_t output = kElsewhere;
  int64_t part = 0;  // of an all_to_all: elements of each part, in which other ranks look for theirs
};

// Of this rank's tensors. Buffers as plan.h lists them.
Placement place(const plan::Problem& problem, const collective::Buffers& buffers, const transport::Arena& arena);

// Whether this placement of `rank` leaves open that the collective runs in heaps. When it does not, the rank need not wait
// for the others' notes.
bool allows_heaps(const plan::Problem& problem, int rank, const Placement& placement, int64_t heap_bytes);

// Where everybody's tensors are, by rank, in this process; nothing when some rank's placement rules it out. Placements
// come from other processes: none that leaves its heap is followed.
std::optional<std::vector<collective::PeerTensors>> locate(const plan::Problem& problem,
                                                           const std::vector<Placement>& placements,
                                                           const transport::Arena& arena);

}  // namespace ringdp::comm
