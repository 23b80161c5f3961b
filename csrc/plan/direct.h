// Direct: every rank sends slice p of its tensor to p, who folds in rank order and sends the result to everyone.
//
// Two latency steps and 2(N-1)/N of the tensor's bytes per rank, in every dtype, because nothing but raw values and
// final results travel. One lane per peer and direction, so a slow peer holds nobody else back.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

Plan direct(const Problem& problem);  // a valid problem with world > 1

}  // namespace ringdp::plan
