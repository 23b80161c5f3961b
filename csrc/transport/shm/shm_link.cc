#include "transport/shm/shm_link.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace ringdp::transport {
namespace {

// Bytes in the ring according to both sides; another process can write the peer's index.
uint64_t checked_used(uint64_t tail, uint64_t head, size_t capacity) {
  const uint64_t used = tail - head;
  if (used <= capacity) return used;
  throw Error(ErrorKind::kInternal, "a shared-memory stream of " + std::to_string(capacity) +
                                        " bytes claims to hold bytes [" + std::to_string(head) + ", " +
                                        std::to_string(tail) +
                                        "): the peer process has overwritten it; look for a memory error there");
}

// The peer copies one piece out while this rank copies the next one in.
constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

StreamWriter::StreamWriter(std::byte* at, size_t capacity)
    : header_(*reinterpret_cast<StreamHeader*>(at)), ring_(at + kStreamHeaderBytes), capacity_(capacity) {}

size_t StreamWriter::push(const void* bytes, size_t size) {
  if (capacity_ - (tail_ - seen_head_) < size) {
    const uint64_t head = header_.head.load(std::memory_order_seq_cst);
    checked_used(tail_, head, capacity_);
    seen_head_ = head;
  }
  const size_t taken = std::min<size_t>(size, capacity_ - (tail_ - seen_head_));
  if (taken == 0) return 0;
  const size_t at = tail_ & (capacity_ - 1);
  const size_t before_wrap = std::min(taken, capacity_ - at);
  std::memcpy(ring_ + at, bytes, before_wrap);
  std::memcpy(ring_, static_cast<const std::byte*>(bytes) + before_wrap, taken - before_wrap);
  tail_ += taken;
  header_.tail.store(tail_, std::memory_order_seq_cst);
  return taken;
}

StreamReader::StreamReader(std::byte* at, size_t capacity)
    : header_(*reinterpret_cast<StreamHeader*>(at)), ring_(at + kStreamHeaderBytes), capacity_(capacity) {}

size_t StreamReader::pop(void* bytes, size_t size) {
  if (seen_tail_ - head_ < size) {
    const uint64_t tail = header_.tail.load(std::memory_order_seq_cst);
    checked_used(tail, head_, capacity_);
    seen_tail_ = tail;
  }
  const size_t taken = std::min<size_t>(size, seen_tail_ - head_);
  if (taken == 0) return 0;
  const size_t at = head_ & (capacity_ - 1);
  const size_t before_wrap = std::min(taken, capacity_ - at);
  std::memcpy(bytes, ring_ + at, before_wrap);
  std::memcpy(static_cast<std::byte*>(bytes) + before_wrap, ring_, taken - before_wrap);
  head_ += taken;
  header_.head.store(head_, std::memory_order_seq_cst);
  return taken;
}

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
