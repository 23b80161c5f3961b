// An eventfd that wakes a sleeping driver thread; one per process, rung by local peers and by other threads.
#pragma once
#include "base/unique_fd.h"

namespace ringdp::transport {

class Doorbell {
 public:
  Doorbell();                                      // a new eventfd (non-blocking, close-on-exec)
  explicit Doorbell(UniqueFd fd) : fd_(std::move(fd)) {}  // a peer's, received over a unix socket

  void ring() const;   // async-signal-safe, thread-safe, never blocks
  void drain() const;  // by the owner, after poll(2) said readable
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace ringdp::transport
