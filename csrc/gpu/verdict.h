// What ranks say to one another after each has tried to map the others' memory: whom it reaches, and why not all.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/card.h"

namespace ringdp::gpu {

struct Verdict {
  uint32_t reached = 0;  // bit by rank
  char failure[252] = {};
};

// `memory`: by rank, null where none is mapped. `failure`: the first, or "".
Verdict verdict_on(const std::vector<char*>& memory, const std::string& failure);

struct Verdicts {
  std::vector<uint32_t> reached;
  std::string first_failure;  // names the rank
};
Verdicts verdicts_from(const std::vector<std::string>& bytes);

// On which sockets descriptors are handed out; "" of ranks whose memory needs none.
std::vector<std::string> sockets_of(const std::vector<Card>& cards);

}  // namespace ringdp::gpu
