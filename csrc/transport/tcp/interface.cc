#include "transport/tcp/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <memory>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ringdp::transport {
namespace {

constexpr int kDiscardPort = 9;  // any will do: connecting a datagram socket sends nothing

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

const Interface* find(const std::vector<Interface>& interfaces, const InterfaceWish& wish) {
  if (!wish.name.empty()) return first(interfaces, [&](const Interface& entry) { return entry.name == wish.name; });
  const Interface* found = wish.one_host ? first_of_kind(interfaces, true) : nullptr;
  // A master that resolves to loopback (127.0.1.1 in /etc/hosts) says nothing about how other hosts reach this one.
  if (found == nullptr && wish.route && !wish.route->is_loopback()) {
    found = first(interfaces, [&](const Interface& entry) { return entry.address.host() == wish.route->host(); });
  }
  if (found == nullptr) found = first_of_kind(interfaces, false);
  return found != nullptr ? found : first_of_kind(interfaces, true);
}

}  // namespace

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

Interface choose_interface(const std::vector<Interface>& interfaces, const InterfaceWish& wish) {
  if (const Interface* found = find(interfaces, wish)) return *found;
  if (wish.name.empty()) throw Error(ErrorKind::kInvalidArgument, "no network interface with an IP address is up");
  throw Error(ErrorKind::kInvalidArgument, "there is no network interface '" + wish.name +
                                               "' that is up and has an IP address; there are " +
                                               describe(interfaces) + " (socket_ifname, RINGDP_SOCKET_IFNAME)");
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

}  // namespace ringdp::transport
