// Tensors in pinned host memory, which is used again when they are gone.
//
// Blocks are powers of two. Thread-safe; a tensor may die on any thread, also after the cache.
#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "backend/device/device_core.h"

namespace ringdp::backend {

// Unused memory that is kept for later calls; pinning costs more than copying.
constexpr size_t kKeptPinned = size_t{512} << 20;  // bytes

class PinnedCache {
 public:
  explicit PinnedCache(DeviceCore& core);

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);  // contiguous
  void trim();  // to kKeptPinned; may wait for the device

  struct Blocks;

 private:
  const std::shared_ptr<Blocks> blocks_;
};

}  // namespace ringdp::backend
