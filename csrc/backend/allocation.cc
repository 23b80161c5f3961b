// The backend's tensor allocation: c10d's own interface, which FSDP2 uses too.
#include <ATen/ATen.h>

#include "backend/backend.h"
#include "backend/device/natives.h"
#include "backend/errors.h"

namespace ringdp::backend {

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    refuse("allocate_tensor: shares CPU memory only, not that of " + options.device().str() +
           ", which all ranks would have to make together; DDP's buckets and ZeroOptimizer's parameters are made so");
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

at::Tensor Backend::share_memory(int64_t elements, const at::TensorOptions& options) {
  const std::shared_ptr<Lane> lane = options.device().is_cpu() ? nullptr : lanes_->of(options.device());
  if (!lane || getSize() == 1) return {};
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  return guarded([&] { return natives_->share(options.device(), lane, elements, dtype, options_->timeout); });
}

void Backend::reclaim_memory(c10::Device device) {
  if (!device.is_cpu()) guarded([&] { natives_->reclaim(options_->timeout); });
}

bool Backend::shares(const at::Tensor& tensor) const { return natives_->shares(tensor); }

// The index of a CPU device is -1; others belong to devices whose memory is not shared.
bool Backend::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0 && group_->has_heap(); }

}  // namespace ringdp::backend
