#include "backend/device/shared_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/gil.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

struct Holder {
  std::shared_ptr<gpu::DeviceMemory> memory;
  c10::Device device;

  ~Holder() {
    if (memory.use_count() > 1) return;  // the group gives it back
    const ReleaseGil release;
    try {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (const std::exception& error) {  // at the end of the process, or whoever broke the device is told so elsewhere
      log_line(LogLevel::kDebug, "ringdp", std::string("the device of a tensor serves no more: ") + error.what());
    }
  }
};

}  // namespace

at::Tensor tensor_in(std::shared_ptr<gpu::DeviceMemory> memory, int64_t elements, at::ScalarType dtype,
                     c10::Device device) {
  char* const data = memory->data();
  auto* const holder = new Holder{std::move(memory), device};
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  return at::from_blob(data, {elements}, [holder](void*) { delete holder; }, options, device);
}

}  // namespace ringdp::backend
