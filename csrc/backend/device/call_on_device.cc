#include "backend/device/call_on_device.h"

#include <ATen/ATen.h>

namespace ringdp::backend {

bool holds_numbers_with_nan(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

}  // namespace ringdp::backend
