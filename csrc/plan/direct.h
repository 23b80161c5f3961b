// Direct: every rank talks to every other. Sums: slice p of each tensor goes to rank p, who folds in rank order.
//
// all_reduce takes two latency steps and 2(N-1)/N of the tensor's bytes per rank, in every dtype; reduce takes two
// steps, everything else one. all_to_all announces every transfer, also an empty one: only its two ends know its size.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

Plan direct(const Problem& problem);  // a valid problem with world > 1

}  // namespace ringdp::plan
