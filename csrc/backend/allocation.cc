// The backend's tensor allocation: c10d's own interface, which FSDP2 uses too.
#include <ATen/ATen.h>

#include "backend/backend.h"
#include "backend/errors.h"

namespace ringdp::backend {

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    refuse("allocate_tensor: this build of ringdp shares CPU memory only, not that of " + options.device().str());
  }
  if (size < 0) refuse("allocate_tensor: " + std::to_string(size) + " elements; it must be 0 or more");
  return heap_allocator().empty(size, c10::typeMetaToScalarType(options.dtype()));
}

HeapAllocator& Backend::heap_allocator() {
  const auto heap = guarded([&] { return group_->heap(); });
  std::call_once(allocator_made_, [&] { allocator_ = new HeapAllocator(heap); });
  return *allocator_;
}

std::unique_ptr<SizedScope> Backend::share_tensors_of(std::vector<size_t> sizes) {
  if (getSize() == 1 || !group_->has_heap()) return nullptr;
  return std::make_unique<SizedScope>(heap_allocator(), std::move(sizes));
}

// The index of a CPU device is -1; others belong to devices whose memory is not shared.
bool Backend::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0 && group_->has_heap(); }

}  // namespace ringdp::backend
