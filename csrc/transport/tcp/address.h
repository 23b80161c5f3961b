// A numeric IPv4 or IPv6 address with a port. No names are looked up here.
#pragma once
#include <sys/socket.h>

#include <optional>
#include <string>

namespace ringdp::transport {

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

}  // namespace ringdp::transport
