// From a plan (plan/plan.h) to what one rank's kernels run: one list of steps, and flags between ranks.
//
// All channels' steps go into one list, in the order in which the plan was written. A barrier is a flag to and from
// every other rank, a post and an await one flag. A message is a store into the receiver's memory and a flag: a partial
// sum that is only sent is written there at once. A rank waits for a message where it first uses it. Of messages that
// it does not use, only the last of a sender has a flag, unless a later post says the same.
//
// A stage holds what plans have in slots and scratch. Data steps of nothing are left out, flags never are: which ranks
// hear from which must not depend on the size.
#pragma once
#include <functional>

#include "device/plan/plan.h"

namespace ringdp::plan {

// `plan_of`: of problem.on_device, for any rank; asked for other ranks' plans only where there are messages.
// InvalidArgument when there are more steps than a kernel takes.
DevicePlan lower(const Problem& problem, const std::function<Plan(const Problem&)>& plan_of);

}  // namespace ringdp::plan
