#include "transport/tcp/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "base/error.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

const WaitPolicy kForever{Deadline::never(), nullptr};

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

UniqueFd accept_one(int listener) {
  pollfd entry{listener, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

class TcpSocket : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      listener_ = listen_on(*SocketAddress::parse(GetParam(), 0));
    } catch (const Error& error) {
      GTEST_SKIP() << GetParam() << " is not to be had here: " << error.what();
    }
  }
  UniqueFd listener_;
};

INSTANTIATE_TEST_SUITE_P(Families, TcpSocket, testing::Values("127.0.0.1", "::1"));

TEST_P(TcpSocket, ListensOnOneAddressAndAPortOfItsOwn) {
  const SocketAddress bound = SocketAddress::bound_to(listener_.get());
  EXPECT_EQ(bound.host(), GetParam());
  EXPECT_NE(bound.port(), 0);
}

TEST_P(TcpSocket, ConnectsAndCarriesBytes) {
  const UniqueFd near = connect_tcp(SocketAddress::bound_to(listener_.get()), kForever);
  const UniqueFd far = accept_one(listener_.get());
  ASSERT_TRUE(send_all(near.get(), "ping", 4, kForever));
  char bytes[4];
  ASSERT_TRUE(recv_all(far.get(), bytes, sizeof bytes, kForever));
  EXPECT_EQ(std::string(bytes, 4), "ping");
  for (const int fd : {near.get(), listener_.get()}) {
    EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(::fcntl(fd, F_GETFL) & O_NONBLOCK);
  }
}

TEST_P(TcpSocket, BulkSocketsSendAtOnceAndBufferMore) {
  const UniqueFd plain(::socket(SocketAddress::bound_to(listener_.get()).family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int before = option(plain.get(), SOL_SOCKET, SO_SNDBUF);
  tune_for_bulk(plain.get());
  EXPECT_EQ(option(plain.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_GT(option(plain.get(), SOL_SOCKET, SO_SNDBUF), before);
  EXPECT_EQ(option(plain.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "a late reader is not an unreachable one";
  EXPECT_EQ(option(plain.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_LT(option(plain.get(), IPPROTO_TCP, TCP_KEEPIDLE), 60) << "before a firewall forgets it";
}

TEST_P(TcpSocket, ControlSocketsNoticeAnUnreachablePeer) {
  const UniqueFd near = connect_tcp(SocketAddress::bound_to(listener_.get()), kForever);
  tune_for_control(near.get(), 4500);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 4500 + 1000);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS), 1);
  EXPECT_EQ(option(near.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  const int seconds = option(near.get(), IPPROTO_TCP, TCP_KEEPIDLE) +
                      option(near.get(), IPPROTO_TCP, TCP_KEEPINTVL) * option(near.get(), IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_EQ(seconds, 5) << "4.5 s, rounded up to the kernel's whole seconds";
}

TEST_P(TcpSocket, RetriesWhileRefused) {
  const SocketAddress gone = SocketAddress::bound_to(listener_.get());
  listener_.reset();
  UniqueFd late;
  int idle = 0;
  // The third time nobody answered, the port is opened again.
  const WaitPolicy policy{Deadline::never(), [&] {
                            if (++idle != 3) return;
                            late.reset(::socket(gone.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
                            ASSERT_EQ(::bind(late.get(), gone.raw(), gone.size), 0);
                            ASSERT_EQ(::listen(late.get(), 1), 0);
                          }};
  EXPECT_TRUE(connect_tcp(gone, policy));
  EXPECT_GE(idle, 3);
}

TEST_P(TcpSocket, GivesUpAtTheDeadline) {
  const SocketAddress gone = SocketAddress::bound_to(listener_.get());
  listener_.reset();
  try {
    connect_tcp(gone, {Deadline::after(std::chrono::milliseconds(30)), nullptr});
    FAIL() << "nobody listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
}

TEST(TcpSocketErrors, AnAddressOfAnotherMachineCannotBeBound) {
  try {
    listen_on(*SocketAddress::parse("192.0.2.1", 0));
    FAIL() << "192.0.2.1 is reserved for documentation";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("192.0.2.1"), std::string::npos) << error.what();
  }
}

TEST(SocketBuffer, IsPinnedAsAskedAndGivenBack) {
  TcpSockets sockets;
  const int fd = sockets.near.get();
  pin_send_buffer(fd, 100'000);
  EXPECT_EQ(send_buffer_of(fd), 200'000);
  EXPECT_FALSE(is_sized_by_kernel(fd));
  leave_send_buffer_to_kernel(fd);
  EXPECT_TRUE(is_sized_by_kernel(fd) || send_buffer_of(fd) == 2 * largest_send_buffer());
}

TEST(SocketBuffer, WhatWouldBeCappedIsNotAskedFor) {
  TcpSockets sockets;
  const int fd = sockets.near.get();
  pin_send_buffer(fd, 100'000);
  pin_send_buffer(fd, largest_send_buffer() + 1);
  EXPECT_EQ(send_buffer_of(fd), 200'000);
  pin_send_buffer(-1, 100'000);
  leave_send_buffer_to_kernel(-1);
}

}  // namespace
}  // namespace ringdp::transport
