// Finds two accesses that no flag orders: by vector clocks, over launches that follow one another on every rank.
//
// A clock per block, because a flag orders only block b of one rank with block b of another; all blocks of a rank begin
// after its last launch has ended. Between launches the rank's own streams write its input and read and write its
// output, so a plan that leaves early, or comes too soon, races with those. Flags among pushed data order that data
// only. So all promises of device_plan.h are held to.
#pragma once
#include <string>
#include <vector>

#include "device/plan/plan.h"

namespace ringdp::plan {

// Empty where there is none, else a sentence that names both accesses. `launches`: the plans of all ranks, which
// check_together() accepts. `in_place`: of an all_reduce, reduce and broadcast the output is the input.
std::string find_race(const std::vector<std::vector<DevicePlan>>& launches, int blocks, bool in_place);

}  // namespace ringdp::plan
