#include "transport/tcp/send_window.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {
namespace {

// For all connections that share the path: 2 Gb/s for 1.5 milliseconds.
constexpr int kTogether = 384 << 10;
constexpr int kSmallest = 64 << 10, kLargest = 4 << 20;
constexpr size_t kUpdateEvery = 256 << 10;
// A longer round trip is not within one site.
constexpr uint64_t kLongUs = 5000;
// In updates, or what is sent between as many: the length of a trial of a larger buffer, and the distance between two.
constexpr int kTrial = 24, kBetweenTrials = 200;
constexpr int kBefore = 8;  // updates on the long path with which a trial is compared

std::optional<SendWindow::PathStats> path_stats(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return SendWindow::PathStats{static_cast<double>(info.tcpi_delivery_rate), info.tcpi_rtt, info.tcpi_min_rtt,
                               info.tcpi_bytes_acked, info.tcpi_busy_time};
}

}  // namespace

// The first trial waits until the rate has settled.
SendWindow::SendWindow(int fd, int sharing) : fd_(fd), sharing_(sharing), trial_(-kTrial) {
  const auto stats = path_stats(fd);
  const bool is_long = stats && stats->round_trip_us > kLongUs;
  is_long ? release() : set(buffer_for(0, 0, sharing));
}

int SendWindow::buffer_for(double bytes_per_second, uint64_t round_trip_us, int sharing) {
  const double product = bytes_per_second * 1e-6 * static_cast<double>(round_trip_us);
  const double least = std::max(kSmallest, kTogether / sharing);
  return static_cast<int>(std::clamp(2 * product, least, double{kLargest}));
}

std::string SendWindow::describe_cap(int granted) {
  if (granted >= kLargest) return "";
  return "send buffers above " + std::to_string(granted >> 10) + " KiB (net.core.wmem_max) are left to the kernel";
}

void SendWindow::sent(size_t bytes) {
  unmeasured_ += bytes;
  if (!pinned_ || unmeasured_ < kUpdateEvery) return;
  unmeasured_ = 0;
  if (const auto stats = path_stats(fd_)) update(*stats);
}

void SendWindow::update(const PathStats& stats) {
  // Smoothed: shapers and switches pass bursts at far more than the path's rate.
  rate_ += (stats.bytes_per_second - rate_) / 8;
  if (try_larger(stats)) return;
  const int wanted = buffer_for(rate_, stats.shortest_us, sharing_);
  if (wanted > std::max(largest_send_buffer(), buffer_for(0, 0, sharing_))) return release();
  // Small changes are within the error of the estimate and not worth a system call.
  if (wanted > buffer_ + buffer_ / 4 || wanted < buffer_ - buffer_ / 4) set(wanted);
}

// A round trip that stays long is caused by this socket's own queue or by a longer route. A trial, in which the kernel
// sizes the buffer, tells the two apart: the rate grows only on a longer route. True while the kernel sizes it.
bool SendWindow::try_larger(const PathStats& stats) {
  const bool stays_long = stats.round_trip_us > std::max(kLongUs, 4 * stats.shortest_us);
  const auto rate = [&] {
    const uint64_t acked = stats.acked - std::exchange(acked_, stats.acked);
    const uint64_t busy_us = stats.busy_us - std::exchange(busy_us_, stats.busy_us);
    return static_cast<double>(acked) / static_cast<double>(std::max<uint64_t>(busy_us, 1));
  };
  if (trial_ <= 0 && !stays_long) trial_ = std::min(trial_, -kBefore);
  if (trial_ == -kBefore) rate();
  if (trial_ < 0) {
    if (stays_long || trial_ < -kBefore) ++trial_;
    return false;
  }
  if (trial_ == 0) {
    rate_before_ = rate();
    leave_send_buffer_to_kernel(fd_);
    trial_ = 1;
  }
  // A buffer of the kernel's takes much at once; a trial lasts until that has been acknowledged.
  if (stats.acked - acked_ < kTrial * kUpdateEvery) return true;
  trial_ = -kBetweenTrials;
  rate() > 1.5 * rate_before_ ? release() : set(buffer_);
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
