// Which network interface a rank listens on: exactly one, never the wildcard address.
//
// The named one; else loopback when all ranks share a host; else the one that routes to the master; else the first that
// is up. Link-local IPv6 addresses are left out: they mean nothing without the other side's interface name.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "transport/tcp/address.h"

namespace ringdp::transport {

struct Interface {
  std::string name;
  SocketAddress address;  // port 0
};

// All addresses of interfaces that are up, in the kernel's order.
std::vector<Interface> list_interfaces();

struct InterfaceWish {
  std::string name;                    // empty: no wish
  std::optional<SocketAddress> route;  // the own address on the way to the master
  bool one_host = false;
};

// Pure. InvalidArgument lists the interfaces there are when the named one is not among them, or none is up.
Interface choose_interface(const std::vector<Interface>& interfaces, const InterfaceWish& wish);

// The own address that packets to `host` would carry; nullopt when it cannot be resolved or reached. Sends nothing.
std::optional<SocketAddress> route_to(const std::string& host);

}  // namespace ringdp::transport
