// Parameter server: one rank does all the work. A baseline to measure the others against, not a choice of auto.
//
// The server is the root, or rank 0 where there is none. all_reduce: it receives (N-1) tensors, folds them in rank
// order segment by segment, and sends (N-1) results. Also reduce and broadcast; of anything else server() gives
// direct's plan, which says so.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

Plan server(const Problem& problem);  // a valid problem with world > 1

}  // namespace ringdp::plan
