// Lowers a plan (plan/plan.h) to what one rank's kernels run: one list of steps, and flags between ranks.
//
// The steps of all channels go into one list, in the order in which they were added to the plan. A barrier becomes a
// flag to and from every other rank, a post and an await one flag. A message becomes a store into the receiver's memory
// and a flag; a partial sum that is only sent is stored there directly. A rank waits for a message before the first
// step that uses it. Of messages that no step uses only the last of each sender has a flag, unless a later post implies
// it.
//
// The stage replaces the slots and scratch of a plan. Data steps without elements are dropped, flags never are: which
// ranks synchronise must not depend on the size.
#pragma once
#include <functional>

#include "device/plan/plan.h"

namespace ringdp::plan {

// `plan_of` returns the plan of any rank; it is called for other ranks only when the plan has messages.
// InvalidArgument when there are more steps than a kernel takes.
DevicePlan lower(const Problem& problem, const std::function<Plan(const Problem&)>& plan_of);

}  // namespace ringdp::plan
