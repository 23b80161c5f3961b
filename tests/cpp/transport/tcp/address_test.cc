#include "transport/tcp/address.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {
namespace {

TEST(Address, TextOfBothFamilies) {
  const auto v4 = SocketAddress::parse("10.1.2.3", 4711);
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->family(), AF_INET);
  EXPECT_EQ(v4->host(), "10.1.2.3");
  EXPECT_EQ(v4->port(), 4711);
  EXPECT_EQ(v4->text(), "10.1.2.3:4711");
  const auto v6 = SocketAddress::parse("fd00:0:0::1", 65535);
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->family(), AF_INET6);
  EXPECT_EQ(v6->host(), "fd00::1");
  EXPECT_EQ(v6->text(), "[fd00::1]:65535");
}

TEST(Address, OnlyNumericAddressesAndPorts) {
  for (const char* host : {"", "localhost", "10.1.2", "10.1.2.3.4", "256.0.0.1", "fd00::g", "10.1.2.3 ", "::1%lo"}) {
    EXPECT_FALSE(SocketAddress::parse(host, 1)) << host;
  }
  EXPECT_FALSE(SocketAddress::parse("10.1.2.3", -1));
  EXPECT_FALSE(SocketAddress::parse("10.1.2.3", 65536));
}

TEST(Address, Loopback) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1"}) EXPECT_TRUE(SocketAddress::parse(host, 0)->is_loopback());
  for (const char* host : {"128.0.0.1", "10.0.0.1", "::2"}) EXPECT_FALSE(SocketAddress::parse(host, 0)->is_loopback());
}

TEST(Address, OfBothEndsOfAConnection) {
  const UniqueFd listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
  const SocketAddress bound = SocketAddress::bound_to(listener.get());
  EXPECT_EQ(bound.host(), "127.0.0.1");
  EXPECT_NE(bound.port(), 0);
  const UniqueFd socket = connect_tcp(bound, {Deadline::never(), nullptr});
  EXPECT_EQ(SocketAddress::connected_to(socket.get()).text(), bound.text());
  EXPECT_THROW(SocketAddress::connected_to(listener.get()), Error);
  EXPECT_THROW(SocketAddress::bound_to(-1), Error);
}

}  // namespace
}  // namespace ringdp::transport
