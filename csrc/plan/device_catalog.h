// The one place that turns an algorithm's name into a device plan.
#pragma once
#include "plan/device_plan.h"

namespace ringdp::plan {

// Hierarchy: of several hosts, which only plans on links have (plan/device_links.h).
enum class DeviceAlgorithm : uint8_t { kDirect, kOneShot, kPush, kRankRing, kRotatedRing, kHierarchy };
constexpr int kDeviceAlgorithmCount = 6;
// "direct", "one_shot", "push", "ring/rank", "ring/rotated", "hierarchy"
const char* name_of(DeviceAlgorithm algorithm);

// Whether the algorithm has a device plan for the collective.
bool can_plan(DeviceAlgorithm algorithm, Collective what);
bool is_sum(Collective what);  // the others only move

// InvalidArgument when the problem is malformed or has no such plan: names the value and the way out. A world of one
// gets the plan "local", and where there is nothing to move ranks only meet, whatever the algorithm.
DevicePlan make_device_plan(DeviceAlgorithm algorithm, const DeviceProblem& problem);

}  // namespace ringdp::plan
