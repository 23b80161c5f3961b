// Sizes a socket's send buffer so that it fills the network path but not the queues on it.
//
// A rank's result depends on all contributions, so bytes that wait in a queue delay the other half of the collective,
// and flows that run far ahead of others leave links idle at the end: with buffers of 4 MiB, 4 hosts on links of 0.5 to
// 2 Gb/s lost 5 to 10 % of the rate. The size is two bandwidth-delay products, from the kernel's delivery rate and its
// shortest round trip (TCP_INFO).
//
// This is for the network of one site. On a long path, and where the needed size is not granted, the kernel sizes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace ringdp::transport {

class SendWindow {
 public:
  // `fd` is borrowed; a failed system call leaves the buffer as it is. `sharing`: connections of this rank that carry a
  // collective at once; their buffers together last for a moment in which the machine is busy.
  SendWindow(int fd, int sharing);

  void sent(size_t bytes);  // handed to the socket just now

  // From TCP_INFO.
  struct PathStats {
    double bytes_per_second = 0;
    uint64_t round_trip_us = 0, shortest_us = 0;  // smoothed; the minimum of the last minutes
    uint64_t acked = 0, busy_us = 0;              // bytes, and for how long any were under way
  };
  void update(const PathStats& stats);
  bool is_pinned() const { return pinned_; }

  // For SO_SNDBUF.
  static int buffer_for(double bytes_per_second, uint64_t round_trip_us, int sharing);

  // What a description of the network says where the kernel grants less than a fast path may need; else empty.
  // `granted`: largest_send_buffer().
  static std::string describe_cap(int granted);

 private:
  bool try_larger(const PathStats& stats);
  void set(int bytes);
  void release();

  const int fd_, sharing_;
  bool pinned_ = true;
  int buffer_ = 0;
  double rate_ = 0;        // bytes per second, averaged over the last few updates
  size_t unmeasured_ = 0;  // bytes since the last update
  int trial_;              // 1 during a trial of a larger buffer; negative: updates until the next one
  // As of the beginning of the trial or of the wait for it, and bytes per busy microsecond in that wait. The kernel's
  // delivery rate is no measure here: it stays what it was while the buffer, and not the path, holds the sender up.
  uint64_t acked_ = 0, busy_us_ = 0;
  double rate_before_ = 0;
};

}  // namespace ringdp::transport
