// Hierarchy: all_reduce in rank order over several hosts, memory within a host and one chain of links between hosts.
//
// A stage is one filling of a slot, cut into as many pieces as the smallest host has ranks. Piece i belongs to the i-th
// rank of every host: it folds its host's ranks onto the prefix from the previous host and sends the partial sum on.
// The last host finishes, and results go once round the hosts. Per host S is sent for 2 hosts, at most 2S for more
// (S: bytes of the tensor; partial sums of 16-bit floats are float32). Slots and barriers are those of one host; arena
// member index = place within the host.
//
// One host: arena's plan. One rank on each: ring's. Other collectives: direct's. The plan says which it is.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// A valid problem with world > 1. InvalidArgument when it has no hosts, because the ranks of some host are not
// contiguous (collective/select falls back to direct then), or when slot_bytes has no cache line for each piece.
Plan hierarchy(const Problem& problem);

}  // namespace ringdp::plan
