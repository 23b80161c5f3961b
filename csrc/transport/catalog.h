// Which transport a pair of ranks uses, and why: one pure decision that both sides reach alike.
#pragma once
#include <string>

#include "base/env.h"
#include "transport/identity.h"

namespace ringdp::transport {

// What came of mapping each other's memory.
struct Probe {
  enum class Outcome { kNotTried, kWorked, kFailed };
  Outcome outcome = Outcome::kNotTried;
  std::string failure;  // "rank 2: memfd_create: ..."
};

enum class Via { kShm, kTcp, kImpossible };

struct Choice {
  Via via = Via::kTcp;
  std::string why;  // "shm: same boot id, ..., mapping probed", "tcp: network namespaces differ"
};

// kImpossible only when shared memory is demanded and cannot be had; `why` then says what is in the way.
Choice choose(TransportChoice wanted, const HostIdentity& a, const HostIdentity& b, const Probe& probe);

}  // namespace ringdp::transport
