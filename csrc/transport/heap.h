// Allocates one rank's shared tensors from a range of memory that all ranks of its host map.
//
// A block of a page or more shares its pages with no other block, so that it can be cut off from the other ranks
// (Arena::fence). Thread-safe. First fit from the lowest address: the system provides pages when they are first
// touched, and later tensors reuse them. Forked children do not have the range: take() throws there, and release() does
// nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace ringdp::transport {

class Heap {
 public:
  static constexpr int64_t kAlignment = 64;  // that of torch's own allocator

  // `keep` owns the `bytes` at `base`; both are multiples of kAlignment.
  Heap(std::shared_ptr<const void> keep, std::byte* base, int64_t bytes);

  // An aligned block of at least one byte. Error(kInvalidArgument) when none that large is free, after close(), and in
  // a forked child.
  std::byte* take(int64_t bytes);
  // Returns a block that take() gave.
  void release(const std::byte* block);

  // The group is gone; blocks in use stay valid. `peers_are_done`: no peer will access this memory again, so its pages
  // return to the system with the last block, even while peers still map them.
  void close(bool peers_are_done);

  // From now on pages return to the system with the last mapping only: peers read them outside of collectives, too.
  void keep_pages();

  int64_t taken_bytes() const;  // currently, including alignment and margins

 private:
  [[noreturn]] void refuse(int64_t bytes) const;
  void return_pages();

  const std::shared_ptr<const void> keep_;
  std::byte* const base_;
  const int64_t bytes_;
  const int owner_pid_;

  mutable std::mutex mutex_;
  struct Range {
    int64_t offset, bytes;
  };
  std::map<int64_t, int64_t> free_;  // offset -> bytes; adjacent ranges are merged
  std::map<int64_t, Range> taken_;   // offset of the block -> the range it occupies with its margins
  int64_t taken_bytes_ = 0;
  bool closed_ = false, peers_are_done_ = false, keeps_pages_ = false;
};

}  // namespace ringdp::transport
