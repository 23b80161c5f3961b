// CUDA as a device whose tensors ringdp takes: libringdp_gpu.so's functions.
#pragma once
#include "backend/device/device_core.h"

namespace ringdp::backend {

// Null without the library or without a device. Looks once per process.
DeviceCore* cuda_core();

}  // namespace ringdp::backend
