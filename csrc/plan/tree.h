// Binomial tree: partial sums go up to rank 0 (or the root), the result comes down, ceil(log2 N) rounds each way.
//
// Ranks are numbered from the root: rank v is the child of v without its lowest set bit. The sum is in the tree's
// order: pairs at distance 1, then pairs of pairs at distance 2, and so on; the same for every element and every run.
// all_reduce, reduce (up only), broadcast (down only); for anything else tree() returns direct's plan, under that name.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

Plan tree(const Problem& problem);  // a valid problem with world > 1

}  // namespace ringdp::plan
