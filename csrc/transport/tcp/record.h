// The records of a checked TCP stream: a header and up to 32 KiB, each with a CRC-32C. TCP's own 16-bit checksum lets 1
// in 65,536 damaged segments pass, and does not cover damage in a network card, a proxy or memory.
//
// The header's checksum covers the length, which is used at once, and the record's number in its stream, which detects
// records that are lost, repeated or reordered. Pure bookkeeping; owned by one link and called by its thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace ringdp::transport {

constexpr size_t kRecordHeader = 12;
// The most bytes after a header, and in one write to a socket: they stay in the cache between checksum and copy, and
// larger writes than the kernel's memory fragments (32 KiB) run at half the rate between processes of one machine.
constexpr size_t kLargestRecord = 32 << 10;

using RecordHeader = std::array<std::byte, kRecordHeader>;

// Cuts the bytes that are sent. Bytes of an open record that were not sent must be offered again, unchanged.
class RecordWriter {
 public:
  // How many of `size` (> 0) bytes belong to the open record; opens one when there is none.
  size_t offer(const void* bytes, size_t size);

  // The part of the header that is to be sent first.
  const std::byte* header() const { return header_.data() + kRecordHeader - header_left_; }
  size_t header_left() const { return header_left_; }
  size_t sent(size_t count);  // `count` bytes of header and record were sent; returns how many of the record

 private:
  uint64_t number_ = 0;
  RecordHeader header_{};
  size_t header_left_ = 0, left_ = 0;
};

// Checks the bytes that arrive.
class RecordReader {
 public:
  struct Damage {
    size_t bytes = 0;                // of the record
    uint32_t expected = 0, got = 0;  // their checksums; `expected` is the header's
  };

  size_t left() const { return left_; }        // bytes of the open record that have not arrived; 0: a header comes next
  bool open(const RecordHeader& header);       // false: damaged, or not the next record's
  bool take(const void* bytes, size_t count);  // bytes of the open record; false: it is complete and damaged
  const Damage& damage() const { return damage_; }

 private:
  uint64_t number_ = 0;
  size_t left_ = 0;
  uint32_t sum_ = 0;
  Damage damage_;
};

}  // namespace ringdp::transport
