// Addresses, and the network interface that a rank listens on.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringdp::transport {

// A numeric IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  // nullopt unless `host` is a numeric address and `port` one of 0..65535.
  static std::optional<SocketAddress> parse(const std::string& host, int port);
  // AF_INET or AF_INET6.
  static SocketAddress from(const sockaddr* address);
  static SocketAddress bound_to(int fd);      // getsockname
  static SocketAddress connected_to(int fd);  // getpeername

  int family() const { return storage.ss_family; }
  std::string host() const;  // "10.0.0.1", "fd00::1"
  int port() const;
  void set_port(int port);
  std::string text() const;  // "10.0.0.1:4711", "[fd00::1]:4711"
  bool is_loopback() const;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Interface {
  std::string name;
  SocketAddress address;  // port 0
};

// All addresses of interfaces that are up, in the kernel's order, without link-local IPv6 addresses: they have no
// meaning without the other side's interface name.
std::vector<Interface> list_interfaces();

struct InterfacePreference {
  std::string name;                    // empty: none
  std::optional<SocketAddress> route;  // this host's source address for packets to the master
  bool one_host = false;
};

// The one interface that a rank listens on, never the wildcard address: the named one; else loopback when all ranks
// share a host; else the one that routes to the master; else the first that is up. Error(kInvalidArgument) lists the
// interfaces when there is none with that name, or none is up.
Interface choose_interface(const std::vector<Interface>& interfaces, const InterfacePreference& preference);

// The source address of packets to `host`; nullopt when it cannot be resolved or reached. Sends nothing.
std::optional<SocketAddress> route_to(const std::string& host);

// Megabits per second as the driver reports them; 0 when it does not (loopback, most virtual interfaces).
int64_t interface_speed(const std::string& name);

// How many TCP connections carry the collectives of a pair of ranks: 1; 4 from 25 Gb/s; 8 from 100 Gb/s. One core per
// side serves one connection, with one congestion window: that is enough up to 10 Gb/s, where more connections gain
// nothing.
int streams_for(int64_t megabits);

}  // namespace ringdp::transport
