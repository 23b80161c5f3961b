// Addresses to listen at and to connect to, and sockets tuned as those of a group.
#include "transport/tcp/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "base/error.h"
#include "transport/tcp/address.h"
#include "transport/tcp/tcp_sockets.h"

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
  const UniqueFd socket = connect_tcp(bound);
  EXPECT_EQ(SocketAddress::connected_to(socket.get()).text(), bound.text());
  EXPECT_THROW(SocketAddress::connected_to(listener.get()), Error);
  EXPECT_THROW(SocketAddress::bound_to(-1), Error);
}

Interface entry(const std::string& name, const std::string& host) { return {name, *SocketAddress::parse(host, 0)}; }

const std::vector<Interface> kHost = {entry("lo", "127.0.0.1"), entry("eth0", "10.0.0.5"), entry("ib0", "10.1.0.5"),
                                      entry("eth0", "fd00::5"), entry("lo", "::1")};

TEST(Interface, TheNamedOneWinsOverEverything) {
  EXPECT_EQ(choose_interface(kHost, {"ib0", SocketAddress::parse("10.0.0.5", 9), true}).address.host(), "10.1.0.5");
}

TEST(Interface, AnUnknownNameListsWhatThereIs) {
  try {
    choose_interface(kHost, {"eth7", std::nullopt, false});
    FAIL() << "there is no eth7";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    for (const char* part : {"eth7", "lo (127.0.0.1)", "eth0 (10.0.0.5)", "ib0 (10.1.0.5)", "eth0 (fd00::5)"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in " << error.what();
    }
  }
}

TEST(Interface, OneHostTalksOverLoopback) {
  EXPECT_EQ(choose_interface(kHost, {"", SocketAddress::parse("10.1.0.5", 9), true}).name, "lo");
  EXPECT_EQ(choose_interface({kHost[1]}, {"", std::nullopt, true}).name, "eth0") << "without loopback, any";
}

TEST(Interface, TheRouteToTheMasterDecidesBetweenHosts) {
  EXPECT_EQ(choose_interface(kHost, {"", SocketAddress::parse("10.1.0.5", 9), false}).name, "ib0");
  EXPECT_EQ(choose_interface(kHost, {"", SocketAddress::parse("fd00::5", 9), false}).address.host(), "fd00::5");
}

TEST(Interface, ALoopbackMasterDoesNotCountBetweenHosts) {
  EXPECT_EQ(choose_interface(kHost, {"", SocketAddress::parse("127.0.0.1", 9), false}).address.host(), "10.0.0.5");
  EXPECT_EQ(choose_interface(kHost, {"", std::nullopt, false}).address.host(), "10.0.0.5");
}

TEST(Interface, LoopbackIsTheLastResort) {
  EXPECT_EQ(choose_interface({kHost[0]}, {"", std::nullopt, false}).name, "lo");
  EXPECT_THROW(choose_interface({}, {"", std::nullopt, false}), Error);
}

TEST(Interface, TheListHasUsableAddressesOnly) {
  const std::vector<Interface> interfaces = list_interfaces();
  ASSERT_FALSE(interfaces.empty());
  for (const Interface& item : interfaces) {
    EXPECT_FALSE(item.name.empty());
    EXPECT_TRUE(SocketAddress::parse(item.address.host(), 0)) << item.address.host();
    EXPECT_NE(item.address.host().substr(0, 4), "fe80");
  }
}

TEST(Interface, TheRouteIsAnOwnAddress) {
  const auto route = route_to("127.0.0.1");
  ASSERT_TRUE(route);
  EXPECT_EQ(route->host(), "127.0.0.1");
  EXPECT_FALSE(route_to("not a host name"));
}

TEST(Streams, GrowWithTheSpeedOfTheInterface) {
  for (const int64_t slow : {0, 10, 1000, 10'000, 24'999}) EXPECT_EQ(streams_for(slow), 1) << slow;
  for (const int64_t fast : {25'000, 40'000, 50'000, 99'999}) EXPECT_EQ(streams_for(fast), 4) << fast;
  for (const int64_t faster : {100'000, 200'000, 800'000}) EXPECT_EQ(streams_for(faster), 8) << faster;
}

TEST(Streams, AnInterfaceThatSaysNothingHasNoSpeed) {
  EXPECT_EQ(interface_speed("lo"), 0);
  EXPECT_EQ(interface_speed("no-such-interface"), 0);
  for (const Interface& entry : list_interfaces()) EXPECT_GE(interface_speed(entry.name), 0) << entry.name;
}

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
  const UniqueFd near = connect_tcp(SocketAddress::bound_to(listener_.get()));
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
  const int receives = option(plain.get(), SOL_SOCKET, SO_RCVBUF);
  tune_for_bulk(plain.get());
  EXPECT_EQ(option(plain.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_GT(option(plain.get(), SOL_SOCKET, SO_SNDBUF), before);
  EXPECT_EQ(option(plain.get(), SOL_SOCKET, SO_RCVBUF), receives) << "the kernel's own tuning would end";
  EXPECT_EQ(option(plain.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "a late reader is not an unreachable one";
  EXPECT_EQ(option(plain.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_LT(option(plain.get(), IPPROTO_TCP, TCP_KEEPIDLE), 60) << "before a firewall forgets it";
}

TEST_P(TcpSocket, ControlSocketsNoticeAnUnreachablePeer) {
  const UniqueFd near = connect_tcp(SocketAddress::bound_to(listener_.get()));
  tune_for_control(near.get(), 4500);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 4500 + 1000);
  EXPECT_EQ(option(near.get(), IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS), 1);
  EXPECT_EQ(option(near.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  const int seconds = option(near.get(), IPPROTO_TCP, TCP_KEEPIDLE) +
                      option(near.get(), IPPROTO_TCP, TCP_KEEPINTVL) * option(near.get(), IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_EQ(seconds, 5) << "4.5 s, rounded up to the kernel's whole seconds";
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
