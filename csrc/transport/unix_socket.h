// Abstract unix sockets between ranks of one host: listen under a random name, check which process connects, pass
// descriptors.
//
// Abstract names vanish with their process and have no file permissions, so both sides check SO_PEERCRED. Sockets are
// non-blocking, and all descriptors are close-on-exec.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "transport/identity.h"
#include "transport/socket.h"

namespace ringdp::transport {

struct UnixListener {
  UniqueFd fd;
  std::string name;  // without the leading zero byte

  static UnixListener open();  // under a new random name
};

// Whether UnixListener::open() can have made this name, which may come from the store.
bool is_socket_name(const std::string& name);

// A connected socket; empty while the listener's queue is full (try again later). Error(kInternal) otherwise.
UniqueFd connect_unix(const std::string& name);

// Whether the process at the other end of a connected socket is the one that `expected` describes, seen from `self`.
bool is_process(int fd, const HostIdentity& expected, const HostIdentity& self);

constexpr size_t kMostFds = 4;

// Sends one byte with at most kMostFds descriptors attached; false when the peer is gone.
bool send_fds(int fd, std::byte mark, const std::vector<int>& fds, const WaitPolicy& policy);

struct FdParcel {
  bool open = false;  // false: the peer is gone
  std::byte mark{};
  std::vector<UniqueFd> fds;
  bool cut = false;  // descriptors are missing: this process may not open as many as were sent
};
FdParcel recv_fds(int fd, const WaitPolicy& policy);

// The ranks of one host, after their group was created, pass each other one descriptor each over temporary sockets.
class FdExchange {
 public:
  FdExchange() : listener_(UnixListener::open()) {}

  const std::string& name() const { return listener_.name; }  // the other ranks must know it

  // Whether the process at the other end of a socket is that rank.
  using Admit = std::function<bool(int socket, int rank)>;

  // Collective. `names`: of all ranks, empty for a rank that passes nothing. `own` is passed to every other rank and
  // remains the caller's. Returns descriptors by rank, empty for this rank and for those without a name.
  // Error(kTimeout) at the deadline; Error(kPeerLost) names a rank that went away. `look` is called while it waits; it
  // throws to end the wait.
  std::vector<UniqueFd> run(
      int rank, const std::vector<std::string>& names, int own, const Admit& admit, Deadline deadline,
      const std::function<void()>& look = [] {});

 private:
  UnixListener listener_;
};

}  // namespace ringdp::transport
