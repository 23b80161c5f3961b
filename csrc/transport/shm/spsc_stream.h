// A byte ring in shared memory with one writer and one reader, each on its own side of the mapping.
//
// head and tail count bytes since the start and never wrap in practice; the ring holds [head, tail). Each side keeps
// its own index privately and trusts only the difference to the peer's: an index that claims more than `capacity`
// bytes throws Error(kInternal) before any byte is touched. Each object belongs to one thread. Owns no memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/control_block.h"

namespace ringdp::transport {

struct StreamHeader {
  alignas(kLinePairBytes) std::atomic<uint64_t> head;  // bytes taken, written by the reader
  alignas(kLinePairBytes) std::atomic<uint64_t> tail;  // bytes put, written by the writer
};
constexpr int64_t kStreamHeaderBytes = sizeof(StreamHeader);

// `at` is a StreamHeader, zero at first, followed by `capacity` bytes, a power of two. Both are views.
class StreamWriter {
 public:
  StreamWriter(std::byte* at, size_t capacity);
  // Copies as much of `bytes` as fits and publishes it at once; returns how much.
  size_t push(const void* bytes, size_t size);

 private:
  StreamHeader& header_;
  std::byte* ring_;
  size_t capacity_;
  uint64_t tail_ = 0;
  uint64_t seen_head_ = 0;  // a stale value only makes the ring look fuller
};

class StreamReader {
 public:
  StreamReader(std::byte* at, size_t capacity);
  // Copies out as much as has arrived, up to `size`, and frees it at once; returns how much.
  size_t pop(void* bytes, size_t size);

 private:
  StreamHeader& header_;
  const std::byte* ring_;
  size_t capacity_;
  uint64_t head_ = 0;
  uint64_t seen_tail_ = 0;  // a stale value only makes the ring look emptier
};

}  // namespace ringdp::transport
