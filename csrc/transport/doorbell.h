// An eventfd that wakes a sleeping driver thread; one per process, rung by local peers and by other threads. Copies
// share the descriptor, which is closed with the last of them.
#pragma once
#include <memory>

#include "base/unique_fd.h"

namespace ringdp::transport {

class Doorbell {
 public:
  Doorbell();  // a new eventfd (non-blocking, close-on-exec)
  explicit Doorbell(UniqueFd fd) : fd_(std::make_shared<const UniqueFd>(std::move(fd))) {}
  // The doorbell of a peer, received over a unix socket; a process keeps one descriptor per eventfd.
  static Doorbell of_peer(UniqueFd fd);

  void ring() const;   // async-signal-safe, thread-safe, never blocks
  void drain() const;  // by the owner, after poll(2) said readable
  int fd() const { return fd_->get(); }

 private:
  explicit Doorbell(std::shared_ptr<const UniqueFd> fd) : fd_(std::move(fd)) {}
  std::shared_ptr<const UniqueFd> fd_;
};

}  // namespace ringdp::transport
