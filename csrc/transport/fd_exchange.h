// The ranks of one host pass each other a descriptor each, after their group was made: over sockets that last no longer.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "transport/unix_socket.h"

namespace ringdp::transport {

class FdExchange {
 public:
  FdExchange() : listener_(UnixListener::open()) {}

  const std::string& name() const { return listener_.name; }  // which the others must know

  // Whether the process at a socket's other end is that rank's.
  using Admit = std::function<bool(int socket, int rank)>;

  // Collective: `names` of all ranks, empty where a rank gives nothing; `own` is given to every other rank, and stays the
  // caller's. By rank; the own entry, and those without a name, are empty. Error(kTimeout) at the deadline,
  // Error(kPeerLost) names a rank that went away. `look`: called while it waits, throws when that is in vain.
  std::vector<UniqueFd> run(int rank, const std::vector<std::string>& names, int own, const Admit& admit,
                            Deadline deadline, const std::function<void()>& look = [] {});

 private:
  UnixListener listener_;
};

}  // namespace ringdp::transport
