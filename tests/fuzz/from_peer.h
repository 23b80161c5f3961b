// A link of which the other end is a fuzz target's input.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "transport/link.h"

namespace ringdp::fuzz {

// Gives what the peer has sent, at most `piece` bytes at a time; takes everything, likewise.
class FromPeer final : public transport::Link {
 public:
  explicit FromPeer(size_t piece) : piece_(piece) {}
  std::string sent;

  size_t try_send(const void*, size_t size) override { return std::min(size, piece_); }
  size_t try_recv(void* bytes, size_t size) override {
    const size_t taken = std::min({size, piece_, sent.size()});
    if (taken == 0) return 0;  // an empty message has no memory
    std::memcpy(bytes, sent.data(), taken);
    sent.erase(0, taken);
    return taken;
  }
  const char* kind() const override { return "tcp"; }

 private:
  const size_t piece_;
};

}  // namespace ringdp::fuzz
