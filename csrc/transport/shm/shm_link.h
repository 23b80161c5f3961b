// A link over shared memory: two byte rings, each with one writer and one reader.
//
// head and tail count bytes since the start and never wrap in practice; a ring holds [head, tail). Each side keeps its
// own index privately and checks the peer's: one that claims more than `capacity` bytes throws Error(kInternal) before
// any byte is touched. Each object belongs to one thread and owns no memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/doorbell.h"
#include "transport/link.h"
#include "transport/shm/control_block.h"

namespace ringdp::transport {

struct StreamHeader {
  alignas(kLinePairBytes) std::atomic<uint64_t> head;  // bytes read, written by the reader
  alignas(kLinePairBytes) std::atomic<uint64_t> tail;  // bytes written, written by the writer
};
constexpr int64_t kStreamHeaderBytes = sizeof(StreamHeader);

// `at`: a StreamHeader, initially zero, followed by `capacity` bytes, a power of two.
class StreamWriter {
 public:
  StreamWriter(std::byte* at, size_t capacity);
  // Copies and publishes as much of `bytes` as fits; returns how much.
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
  // Copies out as much as has arrived, up to `size`, and frees its space; returns how much.
  size_t pop(void* bytes, size_t size);

 private:
  StreamHeader& header_;
  const std::byte* ring_;
  size_t capacity_;
  uint64_t head_ = 0;
  uint64_t seen_tail_ = 0;  // a stale value only makes the ring look emptier
};

// Rings the doorbell of the peer's driver when that is asleep.
class ShmLink final : public Link {
 public:
  // `peer` is the control block of the member at the other end, `bell` its doorbell; `keep` owns them and the streams.
  ShmLink(StreamWriter out, StreamReader in, const ControlBlock& peer, const Doorbell& bell,
          std::shared_ptr<const void> keep);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  const char* kind() const override { return "shm"; }

 private:
  StreamWriter out_;
  StreamReader in_;
  const ControlBlock& peer_;
  const Doorbell& bell_;
  std::shared_ptr<const void> keep_;
};

}  // namespace ringdp::transport
