// The latest events of a process, in a ring of fixed size. Any thread writes and reads; nobody waits.
//
// A writer draws a ticket, claims that ticket's slot by its stamp, fills it and stamps it again. A slot that another
// writer still fills is left to that one, and the event counts as lost: the ring went round while a thread was stopped.
// A reader takes slots whose stamp is the same before and after.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trace/event.h"

namespace ringdp::trace {

class Ring {
 public:
  explicit Ring(size_t capacity) : capacity_(capacity), slots_(new Slot[capacity]) {}  // 0: keeps nothing

  void write(const Event& event);
  std::vector<Event> read() const;  // oldest first, by time

  size_t capacity() const { return capacity_; }
  uint64_t written() const { return tickets_.load(std::memory_order_relaxed); }  // those that were overwritten included
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kWords = (sizeof(Event) + 7) / 8;
  struct alignas(64) Slot {
    std::atomic<uint64_t> stamp{0};  // 2 * ticket + 2 of what is in it; odd: being filled; 0: nothing yet
    std::atomic<uint64_t> words[kWords];
  };
  static_assert(sizeof(Slot) == 64);

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> tickets_{0}, lost_{0};
};

}  // namespace ringdp::trace
