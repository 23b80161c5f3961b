// Test support: the two ends of a TCP connection over loopback, tuned as those of a group.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "transport/link.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {

struct TcpSockets {
  TcpSockets() {
    const UniqueFd listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
    near = connect_tcp(SocketAddress::bound_to(listener.get()), {Deadline::never(), nullptr});
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    far.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    tune_for_bulk(far.get());
  }
  UniqueFd near, far;
};

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
