#include "backend/device/call_on_device.h"

#include <ATen/ATen.h>

#include "backend/errors.h"

namespace ringdp::backend {

void CallOnDevice::block_callers_stream() const {
  if (is_captured() && !lane_->is_capturing()) {
    refuse("the call was captured into a graph: wait for it within the capture, and let what reads its results follow "
           "the graph's replay");
  }
  done_->block(lane_->callers_stream());
}

bool holds_numbers_with_nan(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

}  // namespace ringdp::backend
