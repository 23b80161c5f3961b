// Abstract unix sockets between ranks of one host: listen under a random name, check who connects, pass descriptors.
//
// Abstract names vanish with their process and have no file permissions, so both sides check SO_PEERCRED.
// All descriptors are non-blocking where they are sockets, and close-on-exec.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "transport/identity.h"
#include "transport/socket_io.h"

namespace ringdp::transport {

struct UnixListener {
  UniqueFd fd;
  std::string name;  // without the leading zero byte

  static UnixListener open();  // under a new random name
};

// True for what UnixListener::open() can have made: a card from the store may hold anything.
bool is_socket_name(const std::string& name);

// A connected socket; empty while the listener's queue is full (try again later). Error(kInternal) otherwise.
UniqueFd connect_unix(const std::string& name);

// Whether the process at the other end of a connected socket is the one that `expected` describes, seen from `self`.
bool is_process(int fd, const HostIdentity& expected, const HostIdentity& self);

constexpr size_t kMostFds = 4;

// Sends one byte with descriptors attached (at most kMostFds); false when the peer is gone.
bool send_fds(int fd, std::byte mark, const std::vector<int>& fds, const Patience& patience);

struct FdParcel {
  bool open = false;  // false: the peer is gone
  std::byte mark{};
  std::vector<UniqueFd> fds;
  bool cut = false;  // this process has no room for all descriptors that were sent
};
FdParcel recv_fds(int fd, const Patience& patience);

}  // namespace ringdp::transport
