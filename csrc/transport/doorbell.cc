#include "transport/doorbell.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "base/error.h"

namespace ringdp::transport {

Doorbell::Doorbell() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_) throw_errno("cannot make a doorbell (eventfd); raise the limit on open files (ulimit -n)");
}

void Doorbell::ring() const {
  const int saved = errno;  // a signal handler must leave errno alone
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the owner is woken anyway.
  while (::write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

void Doorbell::drain() const {
  uint64_t rings = 0;
  while (::read(fd_.get(), &rings, sizeof rings) < 0) {
    if (errno == EAGAIN) return;
    if (errno != EINTR) throw_errno("cannot read the doorbell");
  }
}

}  // namespace ringdp::transport
