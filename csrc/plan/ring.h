// The ring: every rank talks to its two neighbours only. Two schedules of the same sum.
//
// Order::kRank: every segment starts at rank 0, is folded on its way to rank N-1, and its result goes once round:
// 2(N-1)+M-1 rounds for M segments, the sum in rank order. Order::kRotated: the textbook ring, chunk c starts at rank
// c: 2(N-1) rounds, 2(N-1)/N of the bytes, but a sum whose order depends on the chunk.
// Partial sums of 16-bit floats travel in float32, so both round once. all_gather, broadcast and reduce (the prefix in
// rank order, the result on to the root) have one schedule. gather, scatter and all_to_all have no ring form: every hop
// would carry the others' bytes too, so ring() gives direct's plan, which says so.
#pragma once
#include "base/env.h"
#include "plan/plan.h"

namespace ringdp::plan {

Plan ring(const Problem& problem, Order order);  // a valid problem with world > 1

// How the rotated ring cuts and begins.
struct RotatedStart {
  int64_t unit = 1;    // chunks of an all_reduce are whole units of so many elements
  bool widens = true;  // what a rank sends first travels wide, as the sums after it do; else in the tensor's type
};

// The two halves behind ring(): all_reduce and reduce_scatter; rank order also reduce.
Plan ring_in_rank_order(const Problem& problem);
Plan ring_rotated(const Problem& problem, const RotatedStart& start = {});

}  // namespace ringdp::plan
