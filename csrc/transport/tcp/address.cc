#include "transport/tcp/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "base/error.h"

namespace ringdp::transport {
namespace {

const sockaddr_in& as_v4(const SocketAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& as_v6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

}  // namespace

std::optional<SocketAddress> SocketAddress::parse(const std::string& host, int port) {
  if (port < 0 || port > 65535) return std::nullopt;
  SocketAddress address;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    address = from(reinterpret_cast<const sockaddr*>(&v4));
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    address = from(reinterpret_cast<const sockaddr*>(&v6));
  } else {
    return std::nullopt;
  }
  address.set_port(port);
  return address;
}

SocketAddress SocketAddress::from(const sockaddr* address) {
  SocketAddress copy;
  copy.size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, address, copy.size);
  return copy;
}

SocketAddress SocketAddress::bound_to(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) throw_errno("getsockname");
  return address;
}

SocketAddress SocketAddress::connected_to(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) throw_errno("getpeername");
  return address;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = family() == AF_INET ? static_cast<const void*>(&as_v4(*this).sin_addr) : &as_v6(*this).sin6_addr;
  ::inet_ntop(family(), bits, text, sizeof text);
  return text;
}

int SocketAddress::port() const { return ntohs(family() == AF_INET ? as_v4(*this).sin_port : as_v6(*this).sin6_port); }

void SocketAddress::set_port(int port) {
  const in_port_t wire = htons(static_cast<uint16_t>(port));
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = wire;
  } else {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = wire;
  }
}

std::string SocketAddress::text() const {
  const std::string name = family() == AF_INET6 ? "[" + host() + "]" : host();
  return name + ":" + std::to_string(port());
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&as_v6(*this).sin6_addr);
  return ntohl(as_v4(*this).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

}  // namespace ringdp::transport
