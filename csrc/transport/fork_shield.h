// Keeps the sockets between ranks from forked children. Peers on other hosts see by their end that a rank is gone, which
// a child that holds copies would hide for as long as it lives: a DataLoader's worker does.
#pragma once
#include <utility>
#include <vector>

namespace ringdp::transport {

// While it is there, fork() leaves in the child something dead in place of these descriptors: they are closed, but their
// numbers are not given to anything else before the child's copies of their owners close them. Any thread.
class ForkShield {
 public:
  ForkShield() = default;
  explicit ForkShield(std::vector<int> fds);
  ForkShield(ForkShield&& other) noexcept : fds_(std::exchange(other.fds_, {})) {}
  ForkShield& operator=(ForkShield&& other) noexcept {
    std::swap(fds_, other.fds_);
    return *this;
  }
  ~ForkShield();

 private:
  std::vector<int> fds_;
};

}  // namespace ringdp::transport
