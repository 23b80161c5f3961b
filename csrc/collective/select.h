// Which plan runs: from the settings, the group's topology and the problem, with a reason that can be printed.
//
// All ranks choose the same, because a choice depends only on what all of them know: shared settings, rank 0's
// thresholds, the topology, the collective and its bytes. Unless a user forces an algorithm, the choice sums in the
// order of the settings, so no threshold changes a result; that is why the algorithm `tree`, whose sum has an order of
// its own, is chosen for broadcasts only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "plan/plan.h"

namespace ringdp::collective {

struct Topology {
  int world = 1;
  bool one_arena = false;  // all ranks share memory
  std::vector<int> hosts;  // first rank of each host, where every host shares memory and has contiguous ranks
  bool one_host = false;   // all ranks are on one, whether they share memory or not
};

struct Choice {
  AlgorithmChoice algorithm = AlgorithmChoice::kDirect;  // never kAuto
  Order order = Order::kRank;
  std::string why;
  WireType wire = WireType::kFp32;  // fp32 where no payload is on a link
};

// `bytes`: Problem::total_bytes(). `settings`: those that all ranks agreed on, see comm/bootstrap.h. InvalidArgument
// when the settings force an algorithm that this group cannot run; names the way out.
Choice select(const Settings& settings, const Topology& topology, plan::Collective what, int64_t bytes);

// "plan: direct (...)", one line for each range of sizes of an all_reduce, ascending.
std::string describe_choices(const Settings& settings, const Topology& topology);

}  // namespace ringdp::collective
