// One rank's shared memory: an anonymous memfd of sealed size, and where things lie in it.
//
// Nothing has a name in /dev/shm or /tmp, so SIGKILL leaves nothing behind. Mappings are not inherited by forked
// children (MADV_DONTFORK): a child that touches them crashes alone instead of corrupting the group.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"

namespace ringdp::transport {

// What a stream carries: messages have streams of their own, so that they never mix with collectives.
enum class Traffic { kCollectives, kMessages };
constexpr int kTrafficCount = 2;

// Geometry, equal on all members; pure arithmetic. Order: control block, two slots, then per kind of traffic one stream
// per member, then the heap.
struct SegmentLayout {
  int members = 0;
  int64_t slot_bytes = 0;    // multiple of 64
  int64_t stream_bytes = 0;  // capacity of one outgoing stream, a power of two
  int64_t heap_bytes = 0;    // reserved for tensors, whole pages; costs memory only where it is touched

  int64_t slot_offset(int parity) const;
  int64_t stream_offset(int to_member, Traffic traffic) const;  // of its StreamHeader; the bytes follow the header
  int64_t heap_offset() const;                                  // page-aligned
  int64_t total_bytes() const;                                  // page-aligned
};

class Segment {
 public:
  // A new memfd: sized, sealed against shrinking and growing, mapped, zero-filled on demand.
  // Error(kInvalidArgument) names the part of an impossible geometry.
  static Segment create(const SegmentLayout& layout);
  // A peer's memfd, closed once it is mapped. Error(kInternal) unless its size is the layout's and it is sealed against
  // shrinking.
  static Segment map(UniqueFd fd, const SegmentLayout& layout);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Puts private pages in place of those that hold [offset, offset + bytes), at their address: what others write through
  // their mappings is not seen here any more. The bytes become 0; what lies beside them in the first and last page stays.
  // Error(kInternal).
  void make_private(int64_t offset, int64_t bytes) const;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }  // to pass to peers; -1 when mapped or closed
  void close_fd() { fd_.reset(); }      // the mapping stays

 private:
  Segment(std::byte* data, size_t size);
  static Segment map_whole(int fd, const SegmentLayout& layout);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringdp::transport
