// Inside a scope, the CPU tensors that this thread makes lie in a rank's heap, whoever makes them.
//
// The first scope of a process puts an allocator of its own in front of torch's, for good; outside of scopes, and for
// small tensors, it passes every call on. Scopes nest; each thread has its own.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "backend/heap_allocator.h"

namespace ringdp::backend {

// Smaller tensors travel inline or through slots anyway.
constexpr size_t kSmallestInScope = 4096;  // bytes

void enter_allocation_scope(HeapAllocator& allocator);
void leave_allocation_scope();  // the innermost; DistBackendError when there is none

// From its making to its end, CPU tensors of these sizes (in bytes) that the making thread allocates lie in the heap while
// there is room, and elsewhere from when there is none. May end on any thread.
class SizedScope {
 public:
  SizedScope(HeapAllocator& allocator, std::vector<size_t> sizes);
  ~SizedScope();
  SizedScope(const SizedScope&) = delete;
  SizedScope& operator=(const SizedScope&) = delete;

  struct State {
    HeapAllocator* const allocator;
    const std::vector<size_t> sizes;
    const int owner_pid;
    std::atomic<bool> open{true};
  };

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace ringdp::backend
