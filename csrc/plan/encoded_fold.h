// Direct over a wire type: contributions are quantised once, and so is the result that owners fold in rank order.
//
// A slice's owner quantises its own contribution as well, decodes all of them, folds in wide_of(dtype) and divides. In
// an all_reduce it then encodes the result, sends that, and adopts what it decodes to, as everybody does: the same bits
// on all ranks. In a reduce_scatter the result stays with its owner and is not quantised. Slices and segments are cut at
// multiples of kWireBlock from the start of the tensor (of the part, in a reduce_scatter), so who owns a block, and in
// which segment it travels, changes nothing.
// Every link carries (N-1)/N of the encoded tensor per round and rank, in two rounds (reduce_scatter: one).
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

Plan fold_encoded(const Problem& problem);  // world > 1 and problem.travels_encoded()

}  // namespace ringdp::plan
