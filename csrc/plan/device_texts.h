// The device plans, a text for each algorithm.
//
// All take a valid problem with more than one rank and more than nothing to do.
// Time, with B bytes a second each way and t_b for a round of flags (a post seen by the other side):
//   direct        3 t_b + 2(N-1)/N S/B   on a full mesh; all ranks sum a slice, in rank order, and see its stores
//   one_shot      2 t_b + (N-1) S/B      everybody sums everything, in rank order; tensors need not be reachable;
//                                        a reduce: the root alone, which reads them where they are
//   push          t_b + 2(N-1) S/B       the same with flags among the data, half of what travels
//   ring/rank     S/B + (2(N-1)) (t_b + segment/B)  neighbours only, in rank order
//   ring/rotated  2(N-1) (t_b + S/(2NB))  neighbours only, half of the bytes each way; the order depends on the chunk
#pragma once
#include <vector>

#include "base/bytes.h"
#include "plan/device_plan.h"

namespace ringdp::plan {

DevicePlan device_direct(const DeviceProblem& problem);        // all_reduce, reduce_scatter, reduce
DevicePlan device_one_shot(const DeviceProblem& problem);      // all_reduce
DevicePlan device_push(const DeviceProblem& problem);          // all_reduce
DevicePlan device_ring_rank(const DeviceProblem& problem);     // all_reduce, reduce_scatter
DevicePlan device_ring_rotated(const DeviceProblem& problem);  // all_reduce, reduce_scatter
DevicePlan device_moves(const DeviceProblem& problem);         // broadcast, all_gather, all_to_all, barrier
DevicePlan device_rooted(const DeviceProblem& problem);        // gather, scatter; reduce, in one shot

// The chunk of rank `owner` in a tensor of `count` elements: whole packs, as equal as can be.
inline Extent device_chunk(const DeviceProblem& problem, int64_t count, int owner) {
  return balanced_part(count, problem.world, owner, pack_elements(problem.dtype));
}

// The next and the previous rank; with two ranks they are one.
inline std::vector<int> ring_neighbours(int rank, int world) {
  const int next = wrap(rank + 1, world), previous = wrap(rank - 1, world);
  return next == previous ? std::vector<int>{next} : std::vector<int>{next, previous};
}

}  // namespace ringdp::plan
