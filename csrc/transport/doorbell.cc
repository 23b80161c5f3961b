#include "transport/doorbell.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "transport/process_fds.h"

namespace ringdp::transport {
namespace {

// The kernel's id of an eventfd, unique among open ones; none before Linux 5.2.
std::optional<uint64_t> eventfd_id(int fd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string name; file >> name;) {
    int64_t id = -1;
    if (name == "eventfd-id:" && file >> id && id >= 0) return static_cast<uint64_t>(id);
  }
  return std::nullopt;
}

}  // namespace

// Sound because both eventfds are open while their ids are compared; pids, which are reused, are not involved.
Doorbell Doorbell::of_peer(UniqueFd fd) {
  static SharedFds& known = *new SharedFds;
  const auto id = eventfd_id(fd.get());
  if (!id) return Doorbell(std::move(fd));
  return Doorbell(known.share(
      *id, [](int) { return true; }, [&fd] { return std::move(fd); }));
}

Doorbell::Doorbell() : Doorbell(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))) {
  if (fd() < 0) throw_errno("cannot make a doorbell (eventfd)");
}

void Doorbell::ring() const {
  const int saved = errno;  // a signal handler must leave errno alone
  const uint64_t one = 1;
  // EAGAIN means that the counter is full, so the owner wakes up anyway.
  while (::write(fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

void Doorbell::drain() const {
  uint64_t rings = 0;
  while (::read(fd(), &rings, sizeof rings) < 0) {
    if (errno == EAGAIN) return;
    if (errno != EINTR) throw_errno("cannot read the doorbell");
  }
}

}  // namespace ringdp::transport
