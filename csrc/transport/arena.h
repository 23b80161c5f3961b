// Memory that all ranks of one host map, with a barrier that does not block.
//
// Each local rank owns one segment (memfd): a control block, two staging slots and the byte rings of its outgoing
// links; and a heap (another memfd) in which its tensors can live. The heap is reserved once, so an allocation in it
// involves no other rank. Every rank maps all segments and heaps. Members are numbered 0..size-1 in the order of their
// group ranks. Except for what concerns the heap, only the driver thread calls these functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/heap.h"

namespace ringdp::transport {

constexpr size_t kHeaderBytes = 128;

// A fixed-size message from every rank to all others: the fingerprint of the collective that it has entered.
struct Header {
  std::byte bytes[kHeaderBytes];
};

class Arena {
 public:
  virtual ~Arena() = default;
  virtual int index() const = 0;  // this rank's member number
  virtual int size() const = 0;   // members

  // Staging slot `parity` (0 or 1) of a member: slot_bytes() long, 64-byte aligned, readable by all, written by its
  // owner.
  virtual std::byte* slot(int member, int parity) const = 0;
  virtual int64_t slot_bytes() const = 0;

  // The heap of a member, heap_bytes() long (0: there is none). A collective's plan says which ranks read and write it.
  virtual std::byte* heap_at(int member) const = 0;
  virtual int64_t heap_bytes() const = 0;
  virtual const std::shared_ptr<Heap>& heap() const = 0;  // this rank's, outlives the arena; null when there is none
  // The group has left, and nothing of it runs any more: another group of this process may adopt this rank's heap.
  virtual void give_heap_back() = 0;
  // Keeps what heap_at() returns mapped, also when the arena is gone.
  virtual std::shared_ptr<const void> mappings() const = 0;

  // Headers: the owner posts number `seq` (increasing); a header stays readable until its owner posts seq + 2. Posting
  // does not wake sleeping members: arrive() and wake() do.
  virtual void post_header(uint64_t seq, const Header& header) = 0;
  virtual void wake() const = 0;                       // rings the doorbells of sleeping members
  virtual uint64_t last_header(int member) const = 0;  // highest seq that member has posted (acquire)
  virtual const Header& header(int member, uint64_t seq) const = 0;

  // Split barrier. arrive() publishes everything written before it; barrier number k (1, 2, ...) has passed once every
  // member has arrived k times. The last member to arrive rings the doorbells of sleeping members.
  virtual void arrive() = 0;
  virtual bool passed(uint64_t barrier) const = 0;  // acquire
  virtual uint64_t arrived(int member) const = 0;   // how often that member has arrived

  // The core on which a member's driver was last seen, at arrive() or publish_core(); -1 before.
  virtual int core(int member) const = 0;
  virtual void publish_core() = 0;

  // Any thread, when a group has failed or is left: this member accesses no peer's tensors from now on, and peers must
  // not use its own tensors in collectives from `barrier` on, the first barrier that it has not passed. Rings the
  // doorbells of sleeping members.
  virtual void retire(uint64_t barrier) = 0;
  virtual uint64_t retired(int member) const = 0;  // that barrier; 0: the member has not retired

  // Replaces `bytes` bytes at `offset` of this rank's heap by private pages at the same address, so that writes of
  // other members do not reach them. Those bytes become 0; the rest of the first and last page is kept.
  // Error(kInternal).
  virtual void fence(int64_t offset, int64_t bytes) = 0;

  // The driver sets this before its last look and poll(2), and clears it afterwards; peers ring only sleeping members.
  virtual void set_asleep(bool asleep) = 0;
};

}  // namespace ringdp::transport
