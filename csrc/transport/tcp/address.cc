#include "transport/tcp/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ringdp::transport {
namespace {

const sockaddr_in& as_v4(const SocketAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& as_v6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

constexpr int kDiscardPort = 9;  // arbitrary: connecting a datagram socket sends nothing

bool is_usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& entry : interfaces) {
    text += (text.empty() ? "" : ", ") + entry.name + " (" + entry.address.host() + ")";
  }
  return text.empty() ? "none" : text;
}

template <class Wanted>
const Interface* first(const std::vector<Interface>& interfaces, Wanted wanted) {
  for (const Interface& entry : interfaces) {
    if (wanted(entry)) return &entry;
  }
  return nullptr;
}

const Interface* first_of_kind(const std::vector<Interface>& interfaces, bool loopback) {
  return first(interfaces, [=](const Interface& entry) { return entry.address.is_loopback() == loopback; });
}

const Interface* find(const std::vector<Interface>& interfaces, const InterfacePreference& preference) {
  if (!preference.name.empty()) {
    return first(interfaces, [&](const Interface& entry) { return entry.name == preference.name; });
  }
  const Interface* found = preference.one_host ? first_of_kind(interfaces, true) : nullptr;
  // A master that resolves to loopback (127.0.1.1 in /etc/hosts) does not say how other hosts reach this one.
  if (found == nullptr && preference.route && !preference.route->is_loopback()) {
    found = first(interfaces, [&](const Interface& entry) { return entry.address.host() == preference.route->host(); });
  }
  if (found == nullptr) found = first_of_kind(interfaces, false);
  return found != nullptr ? found : first_of_kind(interfaces, true);
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

std::vector<Interface> list_interfaces() {
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(head, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (is_usable(*entry)) interfaces.push_back({entry->ifa_name, SocketAddress::from(entry->ifa_addr)});
  }
  return interfaces;
}

Interface choose_interface(const std::vector<Interface>& interfaces, const InterfacePreference& preference) {
  if (const Interface* found = find(interfaces, preference)) return *found;
  if (preference.name.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "no network interface with an IP address is up");
  }
  throw Error(ErrorKind::kInvalidArgument, "there is no network interface '" + preference.name +
                                               "' that is up and has an IP address; there are " + describe(interfaces) +
                                               " (socket_ifname, RINGDP_SOCKET_IFNAME)");
}

std::optional<SocketAddress> route_to(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* head = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(kDiscardPort).c_str(), &hints, &head) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(head, &::freeaddrinfo);
  for (const addrinfo* entry = head; entry != nullptr; entry = entry->ai_next) {
    const UniqueFd fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd && ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0) return SocketAddress::bound_to(fd.get());
  }
  return std::nullopt;
}

int64_t interface_speed(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int64_t megabits = 0;
  return file >> megabits ? std::max<int64_t>(megabits, 0) : 0;
}

int streams_for(int64_t megabits) {
  if (megabits >= 100'000) return 8;
  return megabits >= 25'000 ? 4 : 1;
}

}  // namespace ringdp::transport
