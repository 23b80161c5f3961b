#include "transport/tcp/socket_buffer.h"

#include <sys/socket.h>

#include <fstream>

namespace ringdp::transport {
namespace {

constexpr int kBufLock = 72;  // SO_BUF_LOCK, which older headers lack

}  // namespace

int largest_send_buffer() {
  static const int kLargest = [] {
    int bytes = 212992;  // Linux's default, where /proc does not say
    std::ifstream("/proc/sys/net/core/wmem_max") >> bytes;
    return bytes;
  }();
  return kLargest;
}

void pin_send_buffer(int fd, int bytes) {
  if (bytes <= largest_send_buffer()) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void leave_send_buffer_to_kernel(int fd) {
  const int unlocked = 0, most = largest_send_buffer();
  if (::setsockopt(fd, SOL_SOCKET, kBufLock, &unlocked, sizeof unlocked) == 0) return;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
}

}  // namespace ringdp::transport
