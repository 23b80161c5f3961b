// What plans run on: the links and the arena of one group.
#pragma once
#include <vector>

#include "transport/arena.h"
#include "transport/link.h"

namespace ringdp::collective {

// Owns nothing; all pointers outlive what runs on it.
struct Fabric {
  std::vector<transport::Link*> links;  // by group rank; the own entry is null
  transport::Arena* arena = nullptr;    // of the ranks of this host
  std::vector<int> members;             // group ranks of the arena's members, ascending
};

}  // namespace ringdp::collective
