// The one place that turns an algorithm's name into a plan.
#pragma once
#include "base/settings.h"
#include "plan/plan.h"

namespace ringdp::plan {

// Spelled as in the settings: "ring", "rotated".
const char* name_of(AlgorithmChoice algorithm);
const char* name_of(Order order);

// Whether it can sum with order=tree: `halving`, `hierarchy`, and those in which one rank has the raw values of all.
bool sums_along_tree(AlgorithmChoice algorithm);

// InvalidArgument when the problem is malformed or the algorithm has no plan; the message names the value.
// A world of one gets the plan "local", whatever the algorithm.
Plan make_plan(AlgorithmChoice algorithm, Order order, const Problem& problem);

}  // namespace ringdp::plan
