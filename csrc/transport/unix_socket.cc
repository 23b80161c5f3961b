#include "transport/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "transport/hello.h"

namespace ringdp::transport {
namespace {

constexpr char kNamePrefix[] = "ringdp-";
constexpr size_t kNameRandomBytes = 16;

struct AbstractAddress {
  sockaddr_un storage{};
  socklen_t size = 0;
};

AbstractAddress abstract_address(const std::string& name) {
  AbstractAddress address;
  address.storage.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.storage.sun_path) {
    throw Error(ErrorKind::kInternal, "the unix socket name '" + name + "' is too long");
  }
  // A leading zero byte makes the name abstract: nothing appears in the file system.
  std::memcpy(address.storage.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("cannot make a unix socket");
  return fd;
}

// Room for the descriptors of one parcel, aligned as the kernel wants it.
struct alignas(cmsghdr) ControlSpace {
  char bytes[CMSG_SPACE(kMostFds * sizeof(int))];
};

std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

UnixListener UnixListener::open() {
  std::array<std::byte, kNameRandomBytes> random;
  fill_random(random.data(), random.size());
  UnixListener listener{new_socket(), kNamePrefix + to_hex(random.data(), random.size())};
  const AbstractAddress address = abstract_address(listener.name);
  if (::bind(listener.fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    throw_errno("cannot bind a unix socket");
  }
  if (::listen(listener.fd.get(), SOMAXCONN) != 0) throw_errno("cannot listen on a unix socket");
  return listener;
}

bool is_socket_name(const std::string& name) {
  const std::string prefix = kNamePrefix;
  std::array<std::byte, kNameRandomBytes> random;
  return name.compare(0, prefix.size(), prefix) == 0 &&
         from_hex(name.substr(prefix.size()), random.data(), random.size());
}

UniqueFd connect_unix(const std::string& name) {
  const AbstractAddress address = abstract_address(name);
  UniqueFd fd = new_socket();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return fd;
  if (errno == EAGAIN || errno == EINTR) return UniqueFd();
  throw_errno("cannot connect to the unix socket @" + name + "; transport=tcp avoids unix sockets");
}

bool is_process(int fd, const HostIdentity& expected, const HostIdentity& self) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  if (credentials.uid != expected.uid) return false;
  return !share_pids(expected, self) || static_cast<uint64_t>(credentials.pid) == expected.pid;
}

bool send_fds(int fd, std::byte mark, const std::vector<int>& fds, const Patience& patience) {
  if (fds.size() > kMostFds) throw Error(ErrorKind::kInternal, "too many descriptors in one parcel");
  ControlSpace space{};
  iovec body{&mark, 1};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = space.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
  }
  while (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return false;
    if (errno == EAGAIN) {
      wait_for(fd, POLLOUT, patience);
    } else if (errno != EINTR) {
      throw_errno("cannot pass descriptors");
    }
  }
  return true;
}

FdParcel recv_fds(int fd, const Patience& patience) {
  FdParcel parcel;
  ControlSpace space{};
  iovec body{&parcel.mark, 1};
  while (true) {
    msghdr message{};
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = space.bytes;
    message.msg_controllen = sizeof space.bytes;
    const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      parcel.open = true;
      parcel.fds = take_fds(message);
      parcel.cut = (message.msg_flags & MSG_CTRUNC) != 0;
    }
    if (got >= 0 || errno == ECONNRESET) return parcel;
    if (errno == EAGAIN) {
      wait_for(fd, POLLIN, patience);
    } else if (errno != EINTR) {
      throw_errno("cannot receive descriptors");
    }
  }
}

}  // namespace ringdp::transport
