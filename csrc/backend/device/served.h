// Of which devices tensors are served: CUDA where libringdp_gpu.so finds one, and those that were announced.
#pragma once
#include <c10/core/Device.h>

#include "backend/device/device_core.h"

namespace ringdp::backend {

// Null: tensors of such a device are refused.
DeviceCore* core_of(c10::DeviceType type);

// Tensors of this type, too, lie on the devices of libringdp_gpu.so, and its streams are theirs: for a device that
// RINGDP_GPU_LIBRARY brings along. DistBackendError when the type is served already, or there is no such device.
void serve(c10::DeviceType type);

}  // namespace ringdp::backend
