// Finds data races between accesses that no flag orders, by vector clocks over consecutive launches on every rank.
//
// There is a clock per block, because a flag orders only block b of one rank with block b of another; all blocks of a
// rank start after its previous launch has ended, which may have had another number of them. Between launches the
// rank's own streams write its input and read and write its output, so a plan that ends or starts too early races with
// them. A mark in pushed data orders that data only. This checks all promises of device/plan/plan.h.
#pragma once
#include <string>
#include <vector>

#include "device/plan/plan.h"

namespace ringdp::plan {

// "" when there is none, else a sentence that names both accesses. `launches`: the plans of all ranks, which
// check_together() accepts. `blocks`: of each launch. `in_place`: the output of all_reduce, reduce and broadcast is
// their input.
std::string find_race(const std::vector<std::vector<DevicePlan>>& launches, const std::vector<int>& blocks,
                      bool in_place);

}  // namespace ringdp::plan
