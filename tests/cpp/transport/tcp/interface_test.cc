#include "transport/tcp/interface.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::transport {
namespace {

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

}  // namespace
}  // namespace ringdp::transport
