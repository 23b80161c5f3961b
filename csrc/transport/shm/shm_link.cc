#include "transport/shm/shm_link.h"

#include <algorithm>
#include <utility>

namespace ringdp::transport {
namespace {

// Published piece by piece, so that the peer copies one piece out while the next is copied in.
constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

ShmLink::ShmLink(StreamWriter out, StreamReader in, const ControlBlock& peer, const Doorbell& bell,
                 std::shared_ptr<const void> keep)
    : out_(out), in_(in), peer_(peer), bell_(bell), keep_(std::move(keep)) {}

size_t ShmLink::try_send(const void* bytes, size_t size) {
  size_t sent = 0;
  while (sent < size) {
    const size_t n = out_.push(static_cast<const std::byte*>(bytes) + sent, std::min(kPieceBytes, size - sent));
    if (n == 0) break;
    sent += n;
    ring_if_asleep(peer_, bell_);
  }
  return sent;
}

size_t ShmLink::try_recv(void* bytes, size_t size) {
  size_t received = 0;
  while (received < size) {
    const size_t n = in_.pop(static_cast<std::byte*>(bytes) + received, std::min(kPieceBytes, size - received));
    if (n == 0) break;
    received += n;
    ring_if_asleep(peer_, bell_);
  }
  return received;
}

}  // namespace ringdp::transport
