// The other seam: memory that all ranks of one host map, with a barrier that does not block.
//
// Each local rank owns one segment (memfd): a control block, two staging slots, outgoing streams per peer, and a heap in
// which its tensors can live. The heap is reserved once, so that an allocation concerns nobody else.
// All ranks map all segments. Members are numbered 0..size-1 in group-rank order. Called by the driver
// thread only, but for what concerns the heap.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/heap.h"

namespace ringdp::transport {

constexpr size_t kNoteBytes = 128;

// A fixed-size message every rank shows to all others: the fingerprint of the collective it has entered.
struct Note {
  std::byte bytes[kNoteBytes];
};

class Arena {
 public:
  virtual ~Arena() = default;
  virtual int index() const = 0;  // this rank's member number
  virtual int size() const = 0;   // members

  // Staging slot `parity` (0 or 1) of a member; slot_bytes() long, 64-byte aligned, readable by all, written by its owner.
  virtual std::byte* slot(int member, int parity) const = 0;
  virtual int64_t slot_bytes() const = 0;

  // The heap of a member, heap_bytes() long (0: there is none); the plan of a collective says who reads and writes it.
  virtual std::byte* heap_at(int member) const = 0;
  virtual int64_t heap_bytes() const = 0;
  virtual const std::shared_ptr<Heap>& heap() const = 0;  // this rank's, outlives the arena; null when there is none

  // Notes: the owner posts number `seq` (growing); a note stays readable until its owner posts seq + 2. Posting wakes
  // nobody: an arrival does, or wake().
  virtual void post_note(uint64_t seq, const Note& note) = 0;
  virtual void wake() const = 0;                 // rings the doorbells of sleeping members
  virtual uint64_t noted(int member) const = 0;  // highest seq that member has posted (acquire)
  virtual const Note& note(int member, uint64_t seq) const = 0;

  // Split barrier. arrive() publishes everything written before it; the k-th barrier (k = 1, 2, ...) has passed once
  // every member has arrived k times. The last arriver rings the doorbells of sleeping members.
  virtual void arrive() = 0;
  virtual bool passed(uint64_t barrier) const = 0;  // acquire
  virtual uint64_t arrived(int member) const = 0;   // how often that member has arrived

  // On which core a member's driver last was: as it arrived, or said so itself; -1 before.
  virtual int core(int member) const = 0;
  virtual void show_core() = 0;

  // When a group has failed or is left, any thread: this member will touch no peer's tensor again, and what its own hold
  // is no longer meant for collectives from `barrier` on, the first that it has not passed. Rings sleeping members.
  virtual void retire(uint64_t barrier) = 0;
  virtual uint64_t retired(int member) const = 0;  // that barrier; 0: it has not

  // Cuts `bytes` at `offset` of the own heap off from all other members: private pages take their place at the same
  // address. What lies beside the bytes in the first and last page stays; the bytes are lost. Error(kInternal).
  virtual void fence(int64_t offset, int64_t bytes) = 0;

  // The driver sets this before its last look and poll(2), and clears it after; peers ring only who is asleep.
  virtual void set_asleep(bool asleep) = 0;
};

}  // namespace ringdp::transport
