// One pass: plans over tensors that lie in heaps, which all ranks map. No slots: every input byte is read where it lies
// and every output byte is written once.
//
// all_reduce, reduce: rank r owns slice r, folds it from all tensors in rank order and stores it to all who want it.
// reduce_scatter: every rank folds its part from all. all_gather, broadcast, gather, scatter: whoever wants a part copies it
// from its owner. So in an all_to_all whose parts are all equal; where they differ only a part's sender knows where it is.
// Executors begin such a plan when all ranks have entered the collective, because only their notes say where the tensors
// lie; so no barrier is needed ahead. The one at the end says that nobody touches anybody's tensor any more.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// The tensors of one rank that others reach into, so that they must lie in its heap.
struct Reached {
  bool inputs = false;   // all of them, laid end to end
  bool outputs = false;
};
Reached reached_by_others(const Problem& problem, int rank);

// Whether a one-pass plan exists and the tensors are so large that it beats slots, whose first barrier shows the notes as
// well. Equal on all ranks, but for an all_to_all, whose counts are a pair's affair: one rank that says no decides.
bool is_for_one_pass(const Problem& problem);

// Elements of all input tensors of a rank that has some. Output tensors that others reach into have problem.count.
int64_t input_elements(const Problem& problem, int rank);

// InvalidArgument for a collective without such a plan.
Plan one_pass(const Problem& problem);

}  // namespace ringdp::plan
