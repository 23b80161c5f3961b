// Shared memory of one rank, an anonymous memfd of sealed size: its segment, and its heap.
//
// Nothing has a name in /dev/shm or /tmp, so SIGKILL leaves nothing behind. Forked children do not inherit the mappings
// (MADV_DONTFORK): a child that touches one crashes alone instead of corrupting the group.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "transport/process_fds.h"

namespace ringdp::transport {

// What a stream, a ring of bytes to one member, carries. Messages never share a stream with collectives.
enum class Traffic { kCollectives, kMessages };
constexpr int kTrafficCount = 2;

// The layout, equal on all members: a control block, two slots, one stream per kind of traffic and member. The heap is
// memory of its own, as it outlives the group.
struct SegmentLayout {
  int members = 0;
  int64_t slot_bytes = 0;    // multiple of 64
  int64_t stream_bytes = 0;  // capacity of one outgoing stream, a power of two
  int64_t heap_bytes = 0;    // of the heap: whole pages; only touched pages cost memory

  int64_t slot_offset(int parity) const;
  int64_t stream_offset(int to_member, Traffic traffic) const;  // of its StreamHeader; the bytes follow the header
  int64_t total_bytes() const;                                  // without the heap; page-aligned
};

class Segment {
 public:
  // A new memfd: sized, sealed against shrinking and growing, mapped, zero-filled on demand.
  // Error(kInvalidArgument) names the invalid part of a layout.
  static Segment create(const SegmentLayout& layout);
  static Segment create_heap(int64_t bytes);
  // Maps a peer's memfd and closes it. Error(kInternal) unless it has that size and is sealed against shrinking.
  static Segment map(UniqueFd fd, const SegmentLayout& layout);
  static Segment map_heap(UniqueFd fd, int64_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Replaces the pages that hold [offset, offset + bytes) by private ones at the same address, so that other ranks'
  // writes are not visible here any more. Those bytes become 0; what else lies in the first and last page is kept.
  // Error(kInternal).
  void make_private(int64_t offset, int64_t bytes) const;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }  // to pass to peers; -1 when mapped or closed
  void close_fd() { fd_.reset(); }      // the mapping stays

 private:
  Segment(std::byte* data, size_t size);
  static Segment create(const char* name, int64_t bytes);  // the name is for people who read /proc
  static Segment map(UniqueFd fd, int64_t bytes);
  static Segment map_whole(int fd, int64_t bytes);

  UniqueFd fd_;
  ForkShield shield_;  // of the descriptor of a heap, which is kept as long as the heap
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  pid_t owner_pid_ = 0;  // a forked child does not have the mapping, and may have others there
};

// Bytes, in whole pages, that the heap of each of `ranks` can have while most of this process's address space and file
// size limit stays free: `wanted`, halved until all heaps would fit several times; 0 if that is less than 64 MiB.
// Reserves nothing.
int64_t reservable_heap(int64_t wanted, int ranks);

}  // namespace ringdp::transport
