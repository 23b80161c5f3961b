#include "transport/tcp/send_window.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "transport/tcp/socket_buffer.h"

namespace ringdp::transport {
namespace {

// Of all that share the wire: 2 Gb/s for 1.5 milliseconds.
constexpr int kTogether = 384 << 10;
constexpr int kSmallest = 64 << 10, kLargest = 4 << 20;
constexpr size_t kLookEvery = 256 << 10;
// A longer round trip is not that of one site.
constexpr uint64_t kLongUs = 5000;
// In looks: how long a trial of a larger buffer takes, and what is between two.
constexpr int kTrial = 24, kBetweenTrials = 200;

std::optional<SendWindow::Sight> sight_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return SendWindow::Sight{static_cast<double>(info.tcpi_delivery_rate), info.tcpi_rtt, info.tcpi_min_rtt};
}

}  // namespace

// The first trial waits until the rate has settled.
SendWindow::SendWindow(int fd, int sharing) : fd_(fd), sharing_(sharing), trial_(-kTrial) {
  const auto sight = sight_of(fd);
  const bool is_long = sight && sight->round_trip_us > kLongUs;
  is_long ? release() : set(buffer_for(0, 0, sharing));
}

int SendWindow::buffer_for(double bytes_per_second, uint64_t round_trip_us, int sharing) {
  const double product = bytes_per_second * 1e-6 * static_cast<double>(round_trip_us);
  const double least = std::max(kSmallest, kTogether / sharing);
  return static_cast<int>(std::clamp(2 * product, least, double{kLargest}));
}

void SendWindow::sent(size_t bytes) {
  unseen_ += bytes;
  if (!pinned_ || unseen_ < kLookEvery) return;
  unseen_ = 0;
  if (const auto sight = sight_of(fd_)) see(*sight);
}

void SendWindow::see(const Sight& sight) {
  // Smoothed: shapers and switches let bursts through at far more than the rate of the wire.
  rate_ += (sight.bytes_per_second - rate_) / 8;
  if (try_longer(sight)) return;
  const int wanted = buffer_for(rate_, sight.shortest_us, sharing_);
  if (wanted > std::max(largest_send_buffer(), buffer_for(0, 0, sharing_))) return release();
  // Not for every small change: it is a system call, and the estimate is no better than that.
  if (wanted > buffer_ + buffer_ / 4 || wanted < buffer_ - buffer_ / 4) set(wanted);
}

// A round trip that stays long is that of the own queue, or of a longer route: whether more gets through when the kernel sizes
// the buffer tells. True while it does.
bool SendWindow::try_longer(const Sight& sight) {
  const bool stays_long = sight.round_trip_us > std::max(kLongUs, 4 * sight.shortest_us);
  if (trial_ < 0 || (trial_ == 0 && !stays_long)) {
    trial_ = std::min(trial_ + 1, 0);
    return false;
  }
  if (trial_++ == 0) {
    rate_before_ = rate_;
    leave_send_buffer_to_kernel(fd_);
  }
  if (trial_ < kTrial) return true;
  trial_ = -kBetweenTrials;
  rate_ > 1.5 * rate_before_ ? release() : set(buffer_);
  return !pinned_;
}

void SendWindow::set(int bytes) {
  buffer_ = std::min(bytes, largest_send_buffer());
  pin_send_buffer(fd_, buffer_);
}

void SendWindow::release() {
  pinned_ = false;
  leave_send_buffer_to_kernel(fd_);
}

}  // namespace ringdp::transport
