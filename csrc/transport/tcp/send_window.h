// Keeps a socket's send buffer as small as the wire allows: enough to fill it, too little to fill its queues.
//
// A result cannot leave before everyone's contribution has come, so what waits in a queue delays the other half of the
// collective, and flows that run far ahead of each other leave links idle at the end: with buffers of 4 MiB, 4 hosts on
// links of 0.5 to 2 Gb/s lost 5 to 10 % of the rate to it. The size is two bandwidth-delay products, of the rate
// that the kernel delivers and the shortest round trip it has seen (TCP_INFO).
//
// That is for the wires of one site. Where the path is long, or the buffer that it wants is not granted, the kernel sizes it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ringdp::transport {

class SendWindow {
 public:
  // `fd` is borrowed; any failure to read or set leaves the buffer as it is. `sharing`: connections of this rank that
  // carry a collective at once; together they have a buffer that outlasts a moment in which the machine is busy.
  SendWindow(int fd, int sharing);

  void sent(size_t bytes);  // handed to the socket just now

  // How a wire does, as TCP_INFO says it.
  struct Sight {
    double bytes_per_second = 0;
    uint64_t round_trip_us = 0, shortest_us = 0;  // smoothed; the least of the last minutes
  };
  void see(const Sight& sight);
  bool is_pinned() const { return pinned_; }

  // What is asked of SO_SNDBUF.
  static int buffer_for(double bytes_per_second, uint64_t round_trip_us, int sharing);

 private:
  bool try_longer(const Sight& sight);
  void set(int bytes);
  void release();

  const int fd_, sharing_;
  bool pinned_ = true;
  int buffer_ = 0;
  double rate_ = 0;    // bytes per second, of the last few looks
  size_t unseen_ = 0;  // bytes since the last look
  int trial_;              // looks that the running trial has had; negative: until the next one
  double rate_before_ = 0;
};

}  // namespace ringdp::transport
