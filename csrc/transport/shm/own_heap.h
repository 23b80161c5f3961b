// The heaps of this process: shared memory for the tensors of one rank, which outlives its group.
//
// While tensors lie in the heap of a group that is gone, or something else keeps it, the next group gets that heap: its
// collectives access those tensors in place, and what was touched is used again.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/heap.h"
#include "transport/shm/segment.h"

namespace ringdp::transport {

// A heap in the hands of one group.
class OwnHeap {
 public:
  // For member `member` of the `members` of a group called `group`. A heap of that size that its last owner has given
  // back: the one of a group of that name, or else the one with the most tensors; or else a new one. Thread-safe.
  // Error(kInternal), Error(kInvalidArgument): no such memory.
  static OwnHeap acquire(const std::string& group, int64_t bytes, int member, int members);
  OwnHeap() = default;  // there is none

  OwnHeap(OwnHeap&&) = default;
  OwnHeap& operator=(OwnHeap&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(heap_, other.heap_);
    std::swap(was_given_back_, other.was_given_back_);
    return *this;
  }
  ~OwnHeap() { give_back(); }

  // No peer writes to it any more: another group may get it. Only the first call counts. Any thread, one at a time.
  void give_back();

  const std::shared_ptr<Heap>& heap() const { return heap_; }               // null when there is none
  const std::shared_ptr<const Segment>& memory() const { return memory_; }  // its descriptor is for peers

 private:
  OwnHeap(std::shared_ptr<const Segment> memory, std::shared_ptr<Heap> heap)
      : memory_(std::move(memory)), heap_(std::move(heap)) {}

  std::shared_ptr<const Segment> memory_;
  std::shared_ptr<Heap> heap_;
  bool was_given_back_ = false;
};

}  // namespace ringdp::transport
