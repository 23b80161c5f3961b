// Checks that device plans can run: buffers, packs, and flags that are posted. Data races: device/plan/race.h.
#pragma once
#include <vector>

#include "device/plan/plan.h"

namespace ringdp::plan {

// Error(kInternal) names the step: a rank out of range, a count or offset that is not a multiple of a pack, an access
// outside a buffer, flag values of a slot and pair that do not increase, more steps or ranks than a kernel takes.
void check(const DevicePlan& plan);

// Checks the plans of all ranks, by rank, and that each posted flag value is awaited by its peer and all plans finish.
void check_together(const std::vector<DevicePlan>& plans);

}  // namespace ringdp::plan
