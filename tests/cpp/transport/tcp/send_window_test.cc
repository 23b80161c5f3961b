#include "transport/tcp/send_window.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/tcp/tcp_socket.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

TEST(SendWindow, GrowsWithRateAndRoundTripBetweenItsBounds) {
  constexpr uint64_t kGigabit = 125'000'000;
  const int smallest = SendWindow::buffer_for(0, 0, 3), largest = SendWindow::buffer_for(100 * kGigabit, 1'000'000, 3);
  EXPECT_EQ(smallest, 128 << 10);
  EXPECT_EQ(largest, 4 << 20);
  EXPECT_EQ(SendWindow::buffer_for(kGigabit / 2, 50, 3), smallest) << "a slow wire needs no more";
  int last = 0;
  for (uint64_t gigabits = 1; gigabits <= 100; ++gigabits) {
    const int buffer = SendWindow::buffer_for(gigabits * kGigabit, 100, 3);
    EXPECT_GE(buffer, last);
    EXPECT_GE(buffer, std::min<int64_t>(gigabits * kGigabit / 10'000, largest)) << "less than a round trip of 100 us";
    last = buffer;
  }
  EXPECT_GT(SendWindow::buffer_for(kGigabit, 10'000, 3), SendWindow::buffer_for(kGigabit, 100, 3));
}

TEST(SendWindow, ThoseThatShareAWireShareItsBuffer) {
  EXPECT_EQ(SendWindow::buffer_for(0, 0, 1), 384 << 10);
  EXPECT_EQ(SendWindow::buffer_for(0, 0, 3), 128 << 10);
  EXPECT_EQ(SendWindow::buffer_for(0, 0, 63), 64 << 10) << "the smallest there is";
}

TEST(SendWindow, StartsSmallAndNeverLeavesItsBounds) {
  TcpSockets sockets;
  const int before = send_buffer_of(sockets.near.get());
  SendWindow window(sockets.near.get(), 3);
  EXPECT_LT(send_buffer_of(sockets.near.get()), before);
  std::vector<std::byte> bytes(64 << 10);
  for (size_t sent = 0; sent < (8 << 20);) {
    const ssize_t n = ::send(sockets.near.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      window.sent(static_cast<size_t>(n));
      sent += static_cast<size_t>(n);
    }
    ::recv(sockets.far.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    ASSERT_GE(send_buffer_of(sockets.near.get()), 128 << 10);
    ASSERT_LE(send_buffer_of(sockets.near.get()), 8 << 20) << "the kernel doubles what it is asked for";
  }
}

// A wire of which a socket with such a buffer sees this rate and round trip.
struct Path {
  double bytes_per_second;
  uint64_t round_trip_us, shortest_us;

  SendWindow::PathStats through(int buffer) const {
    const double limited = static_cast<double>(buffer) / static_cast<double>(round_trip_us) * 1e6;
    if (limited < bytes_per_second) return {limited, round_trip_us, shortest_us};
    return {bytes_per_second, static_cast<uint64_t>(buffer / bytes_per_second * 1e6), shortest_us};  // in its queue
  }
};

bool stays_pinned(const Path& path) {
  constexpr size_t kLook = 256 << 10;
  TcpSockets sockets;
  const int fd = sockets.near.get();
  SendWindow window(fd, 3);
  uint64_t acked = 0;
  double busy_us = 0;
  int taken_at_once = 0;
  for (int look = 0; look < 500 && window.is_pinned(); ++look) {
    const bool is_free = is_sized_by_kernel(fd);
    SendWindow::PathStats stats = path.through(is_free ? 4 << 20 : send_buffer_of(fd) / 2);
    if (!is_free || ++taken_at_once > 30) {  // a buffer that the kernel sizes takes much before anything has arrived
      acked += kLook;
      busy_us += kLook / stats.bytes_per_second * 1e6;
    }
    stats.acked = acked;
    stats.busy_us = static_cast<uint64_t>(busy_us);
    window.update(stats);
  }
  return window.is_pinned();
}

TEST(SendWindow, ARouteThatHasBecomeLongIsLeftToTheKernel) {
  EXPECT_FALSE(stays_pinned({125e6, 50'000, 300})) << "from 0.3 to 50 ms, at 1 Gb/s";
  EXPECT_TRUE(stays_pinned({12.5e6, 300, 300})) << "at 100 Mb/s the own queue makes round trips of 10 ms";
  EXPECT_TRUE(stays_pinned({250e6, 300, 300}));
}

TEST(SendWindow, WhatIsNotGrantedIsLeftToTheKernel) {
  EXPECT_EQ(stays_pinned({12.5e9, 4000, 4000}), (4 << 20) <= largest_send_buffer()) << "at 100 Gb/s it wants the most";
}

// Makes the smoothed round trip of a connection over loopback as long as the other side delays its acknowledgements.
bool becomes_slow(const TcpSockets& sockets) {
  const auto info = [&] {
    tcp_info read{};
    socklen_t size = sizeof read;
    EXPECT_EQ(::getsockopt(sockets.near.get(), IPPROTO_TCP, TCP_INFO, &read, &size), 0);
    return read;
  };
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (info().tcpi_rtt <= 10'000 && !patience.passed()) {
    const int off = 0;
    EXPECT_EQ(::setsockopt(sockets.far.get(), IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off), 0);
    EXPECT_EQ(::send(sockets.near.get(), "x", 1, MSG_NOSIGNAL), 1);
    while (info().tcpi_unacked > 0 && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return !patience.passed();
}

TEST(SendWindow, APathThatIsLongFromTheStartIsLeftToTheKernel) {
  TcpSockets near, slow;
  if (!becomes_slow(slow)) GTEST_SKIP() << "this kernel does not delay acknowledgements";
  const bool tells = is_sized_by_kernel(UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).get());
  for (const auto& [sockets, is_long] : {std::pair(&near, false), std::pair(&slow, true)}) {
    const int fd = sockets->near.get();
    pin_send_buffer(fd, 64 << 10);
    SendWindow window(fd, 3);
    EXPECT_EQ(window.is_pinned(), !is_long);
    EXPECT_EQ(is_sized_by_kernel(fd), is_long && tells);
    window.sent(1 << 20);  // measured again, were it pinned
    EXPECT_EQ(window.is_pinned(), !is_long);
  }
}

TEST(SendWindow, ACapOfTheKernelIsSaidWhereAFastPathReachesIt) {
  const int most = SendWindow::buffer_for(1e12, 1'000'000, 1);
  EXPECT_EQ(SendWindow::describe_cap(most), "");
  EXPECT_EQ(SendWindow::describe_cap(212992), "send buffers above 208 KiB (net.core.wmem_max) are left to the kernel");
}

TEST(SendWindow, ADescriptorThatIsNoSocketChangesNothing) {
  SendWindow window(-1, 1);
  window.sent(1 << 20);
}

}  // namespace
}  // namespace ringdp::transport
