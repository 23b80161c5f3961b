// Test support: the two ends of a TCP connection over loopback, tuned as those of a group.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "transport/link.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {

// A socket that is connected, or will be as soon as the other side accepts.
inline UniqueFd connect_tcp(const SocketAddress& address) {
  UniqueFd fd = open_tcp(address);
  pollfd entry{fd.get(), POLLOUT, 0};
  EXPECT_TRUE(::connect(fd.get(), address.raw(), address.size) == 0 || errno == EINPROGRESS);
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  return fd;
}

// The connecting side of a TLS handshake. False when the connection ends, or TLS fails.
inline bool finish_handshake(SocketView socket, const WaitPolicy& policy) {
  while (!socket.handshake()) {
    if (errno != EAGAIN) return false;
    wait_for(socket.fd(), POLLIN, policy);
  }
  return true;
}

struct TcpSockets {
  TcpSockets() {
    const UniqueFd listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
    near = connect_tcp(SocketAddress::bound_to(listener.get()));
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    far.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    tune_for_bulk(far.get());
  }
  UniqueFd near, far;
};

inline int send_buffer_of(int fd) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
  return bytes;
}

inline bool is_sized_by_kernel(int fd) {
  constexpr int kBufLock = 72;  // SO_BUF_LOCK
  int locks = 1;
  socklen_t size = sizeof locks;
  return ::getsockopt(fd, SOL_SOCKET, kBufLock, &locks, &size) == 0 && (locks & 1) == 0;
}

// What LinkSuite asks of a pair of links that sleep on their sockets only.
class SocketLinks {
 public:
  Link& link(int end) { return *links_[end]; }
  void set_asleep(int, bool) {}
  int wake_fd(int) { return -1; }
  void drain(int) {}

 protected:
  std::unique_ptr<Link> links_[2];
};

}  // namespace ringdp::transport
