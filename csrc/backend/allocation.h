// Tensors in a rank's heap, which collectives of the group need not copy: an allocator of torch storages, and scopes in
// which it serves the tensors that a thread makes.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <memory>
#include <vector>

#include "transport/heap.h"

namespace ringdp::backend {

// Allocates, resizes and frees like any other CPU allocator. Storages keep a plain pointer to their allocator and may
// be resized at any time, also after the group is gone and when they hold no memory: so it must live as long as the
// process. Each block keeps its heap alive.
class HeapAllocator final : public c10::Allocator {
 public:
  explicit HeapAllocator(const std::shared_ptr<transport::Heap>& heap) : heap_(heap) {}

  // DistBackendError when the heap is full, or gone with its group and its last tensor.
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  at::Tensor empty(int64_t elements, at::ScalarType dtype);

 private:
  const std::weak_ptr<transport::Heap> heap_;
};

// Frees a block of any heap; false if it is in none. Any thread.
bool free_shared(void* block);

// Inside a scope, all CPU tensors that this thread makes lie in a rank's heap, also those that torch makes internally.
//
// The first scope of a process puts an allocator of its own in front of torch's, until the process ends; outside of
// scopes, and for small tensors, it passes every call on. Scopes nest; each thread has its own.

// Smaller tensors travel inline or through slots anyway.
constexpr size_t kSmallestInScope = 4096;  // bytes

void enter_allocation_scope(HeapAllocator& allocator);
void leave_allocation_scope();  // the innermost; DistBackendError when there is none

// While it lives, CPU tensors of these sizes (in bytes) that the constructing thread allocates lie in the heap while
// there is room, and in ordinary memory once there is none. May be destroyed on any thread.
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
