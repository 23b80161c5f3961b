// Says whether device plans can run at all: buffers, packs, and flags that come. What they race for is device_race.h's.
#pragma once
#include <vector>

#include "device/plan/plan.h"

namespace ringdp::plan {

// Internal, naming the step: a rank out of range, a count or place that is no whole pack, a buffer left, flags of a
// slot and pair that do not grow, more steps or ranks than a kernel takes.
void check(const DevicePlan& plan);

// The same of the plans of all ranks, in their order, and: what one posts is what the other awaits, value by value; and
// all of them come to an end.
void check_together(const std::vector<DevicePlan>& plans);

}  // namespace ringdp::plan
