#include "transport/tcp/socket_buffer.h"

#include <gtest/gtest.h>

#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

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
