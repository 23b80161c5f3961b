// torch storages in a rank's heap: allocated, resized and freed as any other CPU storage.
#pragma once
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "transport/heap.h"

namespace ringdp::backend {

// Storages keep a plain pointer to their allocator and may be resized at any time, also after the group is gone and when
// they hold no memory: so it must live as long as the process. Each block keeps its heap alive.
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

// Frees a block of whatever heap it is from; false: of none. Any thread.
bool free_shared(void* block);

}  // namespace ringdp::backend
