// The ring: every rank talks to its two neighbours only. Two schedules of the same sum.
//
// Order::kRank: every segment starts at rank 0, is reduced on its way to rank N-1, and its result goes once round:
// 2(N-1)+M-1 rounds for M segments, the sum in rank order. Order::kRotated: the textbook ring, chunk c starts at rank
// c: 2(N-1) rounds, 2(N-1)/N of the bytes, but a sum whose order depends on the chunk. Partial sums of 16-bit floats
// travel in float32, so both round once. all_gather, broadcast and reduce (the prefix in rank order, the result on to
// the root) have one schedule. gather, scatter and all_to_all have no ring form: every hop would carry the others'
// bytes too, so ring() returns direct's plan, under that name.
//
// Kernels (in_kernels()) have plans for all_reduce and reduce_scatter. Each rank writes into its neighbours' memory and
// reads only its own, and both directions of a link are equally busy: in rank order because results return the way that
// the prefixes came, rotated because each half of a chunk takes its own direction. Every segment has a slot of its own,
// so no rank waits for a free one.
#pragma once
#include "base/settings.h"
#include "plan/plan.h"

namespace ringdp::plan {

Plan ring(const Problem& problem, Order order);  // a valid problem with world > 1

}  // namespace ringdp::plan
