// Direct: every rank talks to every other. Sums: slice p of each tensor goes to rank p, which folds in rank order.
//
// all_reduce takes two latency steps and 2(N-1)/N of the tensor's bytes per rank, in every dtype; reduce takes two
// steps, everything else one. all_to_all announces every transfer, also an empty one: only its two ends know its size.
// With a wire type, contributions are quantised once, and so is the result: every link then carries (N-1)/N of the
// encoded tensor per round and rank, in two rounds (reduce_scatter: one).
//
// Parameter server: one rank does all the work. A baseline to measure the others against, not a choice of auto. The
// server is the root, or rank 0 where there is none. all_reduce: it receives (N-1) tensors, folds them in rank order
// segment by segment, and sends (N-1) results. Also reduce and broadcast; for anything else server() returns direct's
// plan, under that name.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "plan/plan.h"

namespace ringdp::plan {

Plan direct(const Problem& problem);  // a valid problem with world > 1
Plan server(const Problem& problem);  // a valid problem with world > 1

// How both of them sum: every rank sends each owner its slice. all_reduce: all ranks get every result. reduce: the root
// does. reduce_scatter: slice p lies in input p, and its result stays with p. Only raw values and final results travel,
// so no dtype costs extra bytes. `slices`: by owner, relative to its tensor; empty for a rank that owns nothing.
Plan fold_at_owners(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices);

}  // namespace ringdp::plan
