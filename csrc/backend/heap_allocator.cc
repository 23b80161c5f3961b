#include "backend/heap_allocator.h"

#include <ATen/EmptyTensor.h>

#include "backend/errors.h"

namespace ringdp::backend {
namespace {

struct Block {
  std::shared_ptr<transport::Heap> heap;
  std::byte* at;
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->heap->release(block->at);
}

}  // namespace

c10::DataPtr HeapAllocator::allocate(size_t bytes) {
  return guarded([&] {
    const auto heap = heap_.lock();
    if (!heap) refuse("the shared memory of this tensor is gone with its process group: make a new tensor");
    auto block = std::make_unique<Block>(Block{heap, heap->take(static_cast<int64_t>(bytes))});
    std::byte* const at = block->at;
    return c10::DataPtr(at, block.release(), &free_block, c10::Device(c10::kCPU));
  });
}

at::Tensor HeapAllocator::empty(int64_t elements, at::ScalarType dtype) {
  return at::detail::empty_generic({elements}, this, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt);
}

}  // namespace ringdp::backend
