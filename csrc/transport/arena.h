// The other seam: memory that all ranks of one host map, with a barrier that does not block.
//
// Each local rank owns one segment (memfd): a control block, two staging slots and outgoing streams per peer.
// All ranks map all segments. Members are numbered 0..size-1 in group-rank order. Called by the driver thread only.
#pragma once
#include <cstddef>
#include <cstdint>

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

  // The driver sets this before its last look and poll(2), and clears it after; peers ring only who is asleep.
  virtual void set_asleep(bool asleep) = 0;
};

}  // namespace ringdp::transport
