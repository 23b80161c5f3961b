// Plans of devices that reach each other by messages only, as those of several hosts do: the texts of plans on links,
// cut for devices, and which of them runs.
//
// All ranks choose alike. Offsets and counts are whole packs of 16 bytes (plan/device_step.h).
#pragma once
#include <string>

#include "base/env.h"
#include "plan/device_select.h"
#include "plan/plan.h"

namespace ringdp::plan {

// What a group's settings ask of such plans.
struct LinkWish {
  AlgorithmChoice algorithm = AlgorithmChoice::kAuto;
  Order order = Order::kRank;
  WireType wire = WireType::kFp32;
};

// Why this collective has no such plan, or "".
std::string why_no_link_plan(const LinkWish& wish, const DeviceProblem& problem);

// Whether this collective is a sum in the wire type: pieces of it end between blocks (kWireBlock), and what fills its
// last one up counts as zeros.
bool travels_encoded(const LinkWish& wish, const DeviceProblem& problem);

// direct, or ring/rank or ring/rotated for sums. Precondition: why_no_link_plan() is "".
DeviceChoice select_link_plan(const LinkWish& wish, const DeviceProblem& problem);

// Its messages have an order of rounds (plan/link_rounds.h). Scratch is as large as the tensor, and larger where sums
// travel encoded, in `wire`, as those do that is_encoded() names: cut it before.
Plan make_link_plan(DeviceAlgorithm algorithm, const DeviceProblem& problem, WireType wire = WireType::kFp32);

}  // namespace ringdp::plan
