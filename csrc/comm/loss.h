// A process that is gone: what the groups of a process know of it, and tell those that are being made.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "transport/identity.h"

namespace ringdp::comm {

constexpr char kDied[] = "died: its process is gone";

struct Loss {
  int member = -1;  // its rank: in the job, or in the group that asks
  transport::HostIdentity process;
  std::string how;  // kDied, "closed its connection without a goodbye: ..."
};

using Losses = std::function<std::vector<Loss>()>;

}  // namespace ringdp::comm
