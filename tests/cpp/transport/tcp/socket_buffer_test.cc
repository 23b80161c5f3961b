#include "transport/tcp/socket_buffer.h"

#include <gtest/gtest.h>

#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

int send_buffer(int fd) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
  return bytes;
}

bool is_locked(int fd) {
  int locks = 0;
  socklen_t size = sizeof locks;
  return ::getsockopt(fd, SOL_SOCKET, 72, &locks, &size) != 0 || (locks & 1) != 0;
}

TEST(SocketBuffer, IsPinnedAsAskedAndGivenBack) {
  TcpSockets sockets;
  const int fd = sockets.near.get();
  pin_send_buffer(fd, 100'000);
  EXPECT_EQ(send_buffer(fd), 200'000);
  EXPECT_TRUE(is_locked(fd));
  leave_send_buffer_to_kernel(fd);
  EXPECT_TRUE(!is_locked(fd) || send_buffer(fd) == 2 * largest_send_buffer());
}

TEST(SocketBuffer, WhatWouldBeCappedIsNotAskedFor) {
  TcpSockets sockets;
  const int fd = sockets.near.get();
  pin_send_buffer(fd, 100'000);
  pin_send_buffer(fd, largest_send_buffer() + 1);
  EXPECT_EQ(send_buffer(fd), 200'000);
  pin_send_buffer(-1, 100'000);
  leave_send_buffer_to_kernel(-1);
}

}  // namespace
}  // namespace ringdp::transport
