#include "transport/tcp/send_window.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace ringdp::transport {
namespace {

// Of all that share the wire: 2 Gb/s for 1.5 milliseconds.
constexpr int kTogether = 384 << 10;
constexpr int kSmallest = 64 << 10, kLargest = 4 << 20;
constexpr size_t kLookEvery = 256 << 10;

}  // namespace

SendWindow::SendWindow(int fd, int sharing) : fd_(fd), sharing_(sharing) { set(buffer_for(0, 0, sharing)); }

int SendWindow::buffer_for(double bytes_per_second, uint64_t round_trip_us, int sharing) {
  const double product = bytes_per_second * 1e-6 * static_cast<double>(round_trip_us);
  const double least = std::max(kSmallest, kTogether / sharing);
  return static_cast<int>(std::clamp(2 * product, least, double{kLargest}));
}

void SendWindow::sent(size_t bytes) {
  unseen_ += bytes;
  if (unseen_ < kLookEvery) return;
  unseen_ = 0;
  look();
}

void SendWindow::look() {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  // Smoothed: shapers and switches let bursts through at far more than the rate of the wire.
  rate_ += (static_cast<double>(info.tcpi_delivery_rate) - rate_) / 8;
  const int wanted = buffer_for(rate_, info.tcpi_min_rtt, sharing_);
  // Not for every small change: it is a system call, and the estimate is no better than that.
  if (wanted > buffer_ + buffer_ / 4 || wanted < buffer_ - buffer_ / 4) set(wanted);
}

void SendWindow::set(int bytes) {
  buffer_ = bytes;
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

}  // namespace ringdp::transport
