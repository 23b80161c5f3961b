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

// Room for the descriptors of one parcel, aligned as the kernel requires.
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

constexpr std::byte kGiven{'G'};
constexpr std::chrono::milliseconds kLookEvery{250};
constexpr int kPauseMs = 2;  // where the other side's queue is full

WaitPolicy until(Deadline deadline, const std::function<void()>& look) {
  return {deadline, [=] {
            look();
            if (deadline.passed()) throw Error(ErrorKind::kTimeout, "waited in vain for other ranks' descriptors");
          }};
}

[[noreturn]] void lose(int rank) {
  throw Error(ErrorKind::kPeerLost, "rank " + std::to_string(rank) + " went away while descriptors were exchanged",
              rank);
}

// A rank that has published its name listens until its process ends.
UniqueFd connect_or_lose(int rank, const std::string& name) {
  try {
    return connect_unix(name);
  } catch (const Error&) {
    if (errno == ECONNREFUSED) lose(rank);
    throw;
  }
}

UniqueFd connect_to(int rank, const std::string& name, const FdExchange::Admit& admit, const WaitPolicy& policy) {
  if (!is_socket_name(name)) {
    throw Error(ErrorKind::kInternal, "rank " + std::to_string(rank) + " published no valid socket name");
  }
  for (;;) {
    UniqueFd socket = connect_or_lose(rank, name);
    if (socket && admit(socket.get(), rank)) return socket;
    if (socket) lose(rank);
    pause_for(kPauseMs, policy);
    policy.on_idle();
  }
}

// Serves as many ranks as there are others. Other connections are refused and do not extend the wait.
void serve_peers(int listener, int own, int rank, int world, const FdExchange::Admit& admit, const WaitPolicy& policy) {
  std::vector<bool> served(static_cast<size_t>(world), false);
  auto last_look = Deadline::Clock::now();
  for (int left = world - 1; left > 0;) {
    wait_for(listener, POLLIN, policy);
    if (Deadline::Clock::now() - last_look >= kLookEvery) {
      policy.on_idle();
      last_look = Deadline::Clock::now();
    }
    const UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) throw_errno("cannot accept");
    for (int peer = 0; socket && peer < world; ++peer) {
      if (peer == rank || served[static_cast<size_t>(peer)] || !admit(socket.get(), peer)) continue;
      if (!send_fds(socket.get(), kGiven, {own}, policy)) lose(peer);
      served[static_cast<size_t>(peer)] = true;
      --left;
      break;
    }
  }
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

bool send_fds(int fd, std::byte mark, const std::vector<int>& fds, const WaitPolicy& policy) {
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
      wait_for(fd, POLLOUT, policy);
    } else if (errno != EINTR) {
      throw_errno("cannot pass descriptors");
    }
  }
  return true;
}

FdParcel recv_fds(int fd, const WaitPolicy& policy) {
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
      wait_for(fd, POLLIN, policy);
    } else if (errno != EINTR) {
      throw_errno("cannot receive descriptors");
    }
  }
}

std::vector<UniqueFd> FdExchange::run(int rank, const std::vector<std::string>& names, int own, const Admit& admit,
                                      Deadline deadline, const std::function<void()>& look) {
  const WaitPolicy policy = until(deadline, look);
  const int world = static_cast<int>(names.size());
  std::vector<UniqueFd> sockets(names.size()), received(names.size());
  for (int peer = 0; peer < world; ++peer) {
    const std::string& name = names[static_cast<size_t>(peer)];
    if (peer != rank && !name.empty()) sockets[static_cast<size_t>(peer)] = connect_to(peer, name, admit, policy);
  }
  if (!names[static_cast<size_t>(rank)].empty()) serve_peers(listener_.fd.get(), own, rank, world, admit, policy);
  for (int peer = 0; peer < world; ++peer) {
    const UniqueFd& socket = sockets[static_cast<size_t>(peer)];
    if (!socket) continue;
    FdParcel parcel = recv_fds(socket.get(), policy);
    if (parcel.cut) throw_errno("no room for the descriptor of rank " + std::to_string(peer), EMFILE);
    if (!parcel.open || parcel.mark != kGiven || parcel.fds.size() != 1) lose(peer);
    received[static_cast<size_t>(peer)] = std::move(parcel.fds[0]);
  }
  return received;
}

}  // namespace ringdp::transport
