// Says whether a Problem can be planned at all, before any plan is made.
#pragma once
#include "plan/plan.h"

namespace ringdp::plan {

// InvalidArgument names the field, its value and what is accepted.
void validate(const Problem& problem);

}  // namespace ringdp::plan
