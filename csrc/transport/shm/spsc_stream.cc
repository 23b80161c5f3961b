#include "transport/shm/spsc_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ringdp::transport {
namespace {

// Bytes in the ring according to both sides. The peer's index is memory another process can write.
uint64_t checked_used(uint64_t tail, uint64_t head, size_t capacity) {
  const uint64_t used = tail - head;
  if (used <= capacity) return used;
  throw Error(ErrorKind::kInternal, "a shared-memory stream of " + std::to_string(capacity) +
                                        " bytes claims to hold bytes [" + std::to_string(head) + ", " +
                                        std::to_string(tail) +
                                        "): the peer process has overwritten it; look for a memory error there");
}

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

}  // namespace ringdp::transport
