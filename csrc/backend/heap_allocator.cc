#include "backend/heap_allocator.h"

#include <ATen/EmptyTensor.h>

#include <mutex>
#include <unordered_map>

#include "backend/errors.h"

namespace ringdp::backend {
namespace {

// By address, as raw_allocate() asks for blocks that are their own context. Never destroyed: storages may outlive statics.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<transport::Heap>> heap_of;
};

Blocks& taken_blocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

}  // namespace

bool free_shared(void* block) {
  std::shared_ptr<transport::Heap> heap;
  {
    const std::lock_guard lock(taken_blocks().mutex);
    const auto found = taken_blocks().heap_of.find(block);
    if (found == taken_blocks().heap_of.end()) return false;
    heap = std::move(found->second);
    taken_blocks().heap_of.erase(found);
  }
  heap->release(static_cast<std::byte*>(block));
  return true;
}

c10::DataPtr HeapAllocator::allocate(size_t bytes) {
  return guarded([&] {
    const auto heap = heap_.lock();
    if (!heap) refuse("the shared memory of this tensor is gone with its process group: make a new tensor");
    std::byte* const block = heap->take(static_cast<int64_t>(bytes));
    const std::lock_guard lock(taken_blocks().mutex);
    taken_blocks().heap_of[block] = heap;
    return c10::DataPtr(block, block, raw_deleter(), c10::Device(c10::kCPU));
  });
}

c10::DeleterFnPtr HeapAllocator::raw_deleter() const {
  return [](void* block) { free_shared(block); };
}

at::Tensor HeapAllocator::empty(int64_t elements, at::ScalarType dtype) {
  return at::detail::empty_generic({elements}, this, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt);
}

}  // namespace ringdp::backend
