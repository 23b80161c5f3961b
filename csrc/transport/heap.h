// Allocates one rank's shared tensors from a range of memory that all ranks of its host map.
//
// It belongs to one group at a time. While it holds tensors it outlives that group, and the next one may adopt it.
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
  // return to the system with the last block, even while peers still map them, unless another group has adopted it.
  void close(bool peers_are_done);
  // The group is gone, and no peer writes to this memory any more: another group may adopt it.
  void offer();
  // By another group, which then owns it. False unless it was offered, and in a forked child.
  bool adopt();

  // From now on pages return to the system with the last mapping only: peers may read them when this rank has left.
  void keep_pages();
  // No other group ever adopts it: peers do not see all of it any more, or may access it at any time.
  void forbid_adoption();

  int64_t taken_bytes() const;  // currently, including alignment and margins; 0 in a forked child

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
  bool is_offered_ = false, may_be_adopted_ = true;
};

}  // namespace ringdp::transport
