// Of which devices tensors are staged: CUDA where libringdp_gpu.so finds one, and those that were announced.
#pragma once
#include <c10/core/Device.h>

#include "backend/device/device_core.h"

namespace ringdp::backend {

// Null: tensors of such a device are refused.
DeviceCore* core_of(c10::DeviceType type);

// `core` must live as long as the process. DistBackendError when the type is served already.
void serve(c10::DeviceType type, DeviceCore& core);

}  // namespace ringdp::backend
