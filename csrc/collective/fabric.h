// What the plans of one group run on. Owns nothing.
#pragma once
#include <vector>

#include "transport/arena.h"
#include "transport/link.h"

namespace ringdp::collective {

struct Fabric {
  std::vector<transport::Link*> links;  // by group rank; the own entry is null
  transport::Arena* arena = nullptr;    // of the ranks of this host
  std::vector<int> members;             // group ranks of the arena's members, ascending
};

}  // namespace ringdp::collective
