// Hierarchy: all_reduce in rank order over several hosts, memory within a host and one chain of links between hosts.
//
// A stage is cut into as many pieces as the smallest host has ranks. Piece i belongs to the i-th rank of every host: it
// reduces its host's ranks onto the prefix from the previous host and sends the partial sum on. The last host finishes,
// and results go once round the hosts. Per host S is sent for 2 hosts, at most 2S for more (S: bytes of the tensor;
// partial sums of 16-bit floats are float32). Arena member index = place within the host.
//
// A stage is one filling of a slot. In kernels that access peers' tensors directly (in_kernels()) there is one stage,
// the whole tensor: a piece's owner reads inputs and writes outputs in place, between a barrier at the beginning and
// one at the end. Segment s is then reduced on host h in round s + h, so that all hosts are at work; there are S +
// 2(H-1) rounds, the first without messages. A lone rank of the first host sends its input as it is.
//
// With one host it is arena's plan, with one rank per host ring's, for other collectives direct's, under that name.
// Sums along the tree: host_trees.h, or direct's plan with one rank per host.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// A valid problem with world > 1. InvalidArgument when it has no hosts, because the ranks of some host are not
// contiguous (collective/select falls back to direct then), or when a slot is too small for a cache line per piece.
Plan hierarchy(const Problem& problem);

}  // namespace ringdp::plan
