#include "reducer/memory.h"

#include <ATen/ATen.h>

#include "backend/capabilities.h"

namespace ringdp::reducer {
namespace {

backend::Capabilities* capabilities_of(c10d::ProcessGroup& group, const at::Device& device) {
  return dynamic_cast<backend::Capabilities*>(backend_of(group, device).get());  // the group keeps it
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> backend_of(c10d::ProcessGroup& group, const at::Device& device) {
  for (const at::Device& served : group.getDeviceTypes()) {
    if (served.type() == device.type()) return group.getBackend(device.type());
  }
  return nullptr;
}

bool offers_shared_memory(c10d::ProcessGroup& group, const at::Device& device) {
  // Other devices' registered memory is their backend's own affair.
  if (!device.is_cpu() || group.getSize() == 1) return false;
  const auto backend = backend_of(group, device);
  return backend && backend->supportsTensorAlloc(device.index());
}

std::unique_ptr<backend::SizedScope> share_gradients_of(c10d::ProcessGroup& group, const at::Device& device,
                                                        std::vector<size_t> sizes) {
  auto* const capabilities = capabilities_of(group, device);
  return capabilities && !sizes.empty() ? capabilities->share_tensors_of(std::move(sizes)) : nullptr;
}

at::Tensor flat_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options) {
  if (!offers_shared_memory(group, options.device())) return at::empty({elements}, options);
  return backend_of(group, options.device())->allocateTensor(elements, options);
}

at::Tensor lasting_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options) {
  auto* const capabilities = options.device().is_cpu() ? nullptr : capabilities_of(group, options.device());
  const at::Tensor shared = capabilities && elements > 0 ? capabilities->share_memory(elements, options) : at::Tensor();
  return shared.defined() ? shared : flat_memory(group, elements, options);
}

void reclaim_memory(c10d::ProcessGroup& group, const at::Device& device) {
  if (auto* const capabilities = capabilities_of(group, device)) capabilities->reclaim_memory(device);
}

bool is_shared(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  const auto* const capabilities = capabilities_of(group, tensor.device());
  return capabilities != nullptr && capabilities->shares(tensor);
}

}  // namespace ringdp::reducer
