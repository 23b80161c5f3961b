#include "backend/device/call_on_device.h"

#include <ATen/ATen.h>

#include "backend/errors.h"

namespace ringdp::backend {

void CallOnDevice::refuse_capture() const {
  if (!lane_->core().is_capturing(lane_->native(lane_->callers_stream()))) return;
  refuse("the current stream of " + lane_->device().str() +
         " is being captured: a graph cannot replay a collective, whose ranks compare on the host what they call; call "
         "it outside the capture");
}

bool holds_numbers_with_nan(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

}  // namespace ringdp::backend
