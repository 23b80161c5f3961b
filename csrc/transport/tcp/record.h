// How a checked TCP stream is cut: records of a header and so many bytes, each with a CRC-32C. TCP's own 16-bit sum lets 1 in
// 65,536 damaged segments pass, and sees nothing of what a network card, a proxy or memory does to bytes outside of the wire.
//
// The header's sum covers its length, which is believed at once, and the record's number in its stream: one that is lost,
// repeated or moved has a wrong one. Pure bookkeeping; owned by one link and called by its thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace ringdp::transport {

constexpr size_t kRecordHeader = 12;
// Bytes after the header, and of what is written to a socket at once: they stay in a cache between two readings, and what is
// larger than the kernel's pieces of memory (32 KiB) goes at half the rate between processes of one machine.
constexpr size_t kLargestRecord = 32 << 10;

using RecordHeader = std::array<std::byte, kRecordHeader>;

// Cuts what is offered to a link. Bytes of an open record that were not sent must be offered again, unchanged.
class RecordWriter {
 public:
  // Of `size` (> 0) offered bytes, how many belong to the open record; opens one of them when there is none.
  size_t offer(const void* bytes, size_t size);

  const std::byte* header() const { return header_.data() + kRecordHeader - header_left_; }  // what of it is to be sent first
  size_t header_left() const { return header_left_; }
  size_t sent(size_t count);  // so many bytes of header and record left; how many of the record

 private:
  uint64_t number_ = 0;
  RecordHeader header_{};
  size_t header_left_ = 0, left_ = 0;
};

// Checks what comes.
class RecordReader {
 public:
  struct Damage {
    size_t bytes = 0;                // of the record
    uint32_t expected = 0, got = 0;  // sums of them; `expected` came in the header
  };

  size_t left() const { return left_; }  // bytes of the open record still to come; 0: a header comes next
  bool open(const RecordHeader& header);  // false: it is damaged, or not that of the next record
  bool take(const void* bytes, size_t count);  // of the open record; false: it is complete and damaged
  const Damage& damage() const { return damage_; }

 private:
  uint64_t number_ = 0;
  size_t left_ = 0;
  uint32_t sum_ = 0;
  Damage damage_;
};

}  // namespace ringdp::transport
