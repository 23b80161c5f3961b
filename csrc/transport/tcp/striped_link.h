// A Link over several others, its streams: bytes go round them in stripes of fixed length, without any header.
//
// Both sides take turns alike, so the position in the sequence says which stream is next. A stream that breaks breaks
// the link as soon as its turn comes. A stripe must fit into a stream's send buffer, or they would run one after the
// other: send_window.h's smallest holds more than one.
#pragma once
#include <algorithm>
#include <memory>

#include "transport/link.h"

namespace ringdp::transport {

constexpr size_t kStripeBytes = 64 << 10;

class StripedLink : public Link {
 public:
  explicit StripedLink(std::vector<std::unique_ptr<Link>> streams);  // at least one

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  // Only the stream whose turn it is: the others' turn cannot come before.
  void add_polls(short events, std::vector<pollfd>& polls) const override;
  const char* kind() const override { return streams_.front()->kind(); }

 private:
  struct Turn {
    size_t stream = 0;
    size_t done = 0;  // bytes of the current stripe
  };
  size_t left(const Turn& turn, size_t wanted) const { return std::min(kStripeBytes - turn.done, wanted); }
  void count(Turn& turn, size_t bytes) const;

  const std::vector<std::unique_ptr<Link>> streams_;
  Turn out_, in_;
};

}  // namespace ringdp::transport
