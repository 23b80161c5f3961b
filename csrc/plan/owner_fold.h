// The sum of direct and server plans: every rank sends each owner its slice, and the owner folds in rank order.
//
// all_reduce: everybody gets every result. reduce: the root does. reduce_scatter: slice p lies in input p, and its
// result stays with p. Nothing but raw values and final results travel, so bytes are the same multiple in every dtype.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "plan/plan.h"

namespace ringdp::plan {

// By owner: its part of a reduce_scatter, or its share of the tensor in whole units of `unit` elements.
std::vector<Extent> slices_of(const Problem& problem, int64_t unit = 1);

// `slices` by owner, inside its tensor; an owner of nothing has an empty one.
Plan fold_at_owners(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices);

}  // namespace ringdp::plan
