// Which plan runs: from the settings, the group's topology and the message, with a reason that can be printed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "plan/plan.h"

namespace ringdp::collective {

struct Topology {
  int world = 1;
  bool one_arena = false;      // all ranks share memory
  std::vector<int> hosts;      // first rank of each host, where every host shares memory and has contiguous ranks
};

struct Choice {
  AlgorithmChoice algorithm = AlgorithmChoice::kDirect;  // never kAuto
  Order order = Order::kRank;
  std::string why;
  WireType wire = WireType::kFp32;  // in force: fp32 where no payload is on a link
};

// InvalidArgument when the settings force an algorithm that this group cannot run; names the way out.
Choice select(const Settings& settings, const Topology& topology);

}  // namespace ringdp::collective
