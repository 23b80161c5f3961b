// The interface between algorithms and transports: an ordered, reliable, non-blocking byte stream between two ranks.
//
// Owned by one group and called only by the thread that drives that group. Sending never waits for the peer to post a
// receive: data is buffered up to a fixed capacity. A broken stream throws Error(kPeerLost).
#pragma once
#include <poll.h>

#include <cstddef>
#include <vector>

namespace ringdp::transport {

class Link {
 public:
  virtual ~Link() = default;

  // Copies as many of `size` bytes as fit into the stream, and returns how many; 0 when it is full.
  virtual size_t try_send(const void* bytes, size_t size) = 0;

  // Copies out what has arrived, `size` bytes at most, and returns how many; 0 when nothing has arrived.
  virtual size_t try_recv(void* bytes, size_t size) = 0;

  // Adds what a sleeping driver must poll(2) for these events (POLLIN, POLLOUT); nothing when the peer rings the
  // driver's doorbell instead.
  virtual void add_polls(short /*events*/, std::vector<pollfd>& /*polls*/) const {}

  virtual const char* kind() const = 0;  // "shm" or "tcp"
};

}  // namespace ringdp::transport
