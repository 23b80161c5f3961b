// Recursive halving: in round k a rank exchanges half of what it still adds up with the rank at distance 2^k; then the
// results come back the same way. 2 log2(N) messages per chunk, where direct has 2(N-1) (Thakur, Rabenseifner and
// Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; there the distance halves).
//
// After round k a partial sum is of 2^(k+1) neighbouring ranks, added up along the balanced tree over them: for a power
// of two of ranks that is order=tree (leaf_tree.h). A rank sends 2(N-1)/N of the tensor, as with direct; but partial
// sums of 16-bit floats travel in float32. all_reduce, of floats only sums, of one tensor each; for anything else
// halving() returns the plan of direct, under that name.
#pragma once
#include <bit>

#include "plan/plan.h"

namespace ringdp::plan {

constexpr bool can_halve(int world) { return std::has_single_bit(static_cast<unsigned>(world)); }

Plan halving(const Problem& problem);  // a valid problem with world > 1 for which can_halve()

}  // namespace ringdp::plan
