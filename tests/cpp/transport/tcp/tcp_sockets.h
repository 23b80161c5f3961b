// Test support: the two ends of a TCP connection over loopback, tuned as those of a group.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

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

}  // namespace ringdp::transport
