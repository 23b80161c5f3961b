// The memory in which one rank's shared tensors live: blocks of a range that all ranks of its host map.
//
// A block of a page or more shares its pages with no other: they may be cut off from the other ranks (Arena::fence).
// Any thread may take and release. First fit from the lowest address: pages come from the system when they are touched
// first and stay, so that the next tensor finds them. The range is absent from forked children: there take() refuses and
// release() does nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace ringdp::transport {

class Heap {
 public:
  static constexpr int64_t kAlignment = 64;  // what torch's own allocator gives

  // `keep` owns the `bytes` at `base`; both multiples of kAlignment.
  Heap(std::shared_ptr<const void> keep, std::byte* base, int64_t bytes);

  // At least one byte, aligned. Error(kInvalidArgument) when no such block is free, after close(), or in a forked child.
  std::byte* take(int64_t bytes);
  // What take() gave, once.
  void release(const std::byte* block);

  // Its group is gone; blocks that are taken stay good. `peers_are_done`: none of them will look at this memory again, so
  // that its pages go back to the system with the last block, although peers may still map them.
  void close(bool peers_are_done);

  int64_t taken_bytes() const;  // now, with alignment and margins

 private:
  [[noreturn]] void refuse(int64_t bytes) const;
  void give_back();

  const std::shared_ptr<const void> keep_;
  std::byte* const base_;
  const int64_t bytes_;
  const int owner_pid_;

  mutable std::mutex mutex_;
  struct Range {
    int64_t offset, bytes;
  };
  std::map<int64_t, int64_t> free_;  // offset -> bytes; ranges never touch each other
  std::map<int64_t, Range> taken_;   // offset of the block -> what it takes with its margins
  int64_t taken_bytes_ = 0;
  bool closed_ = false, peers_are_done_ = false;
};

}  // namespace ringdp::transport
