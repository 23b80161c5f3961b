// Tensors of a device whose memory its peers map (gpu/segments.h).
#pragma once
#include <memory>

#include <ATen/core/Tensor.h>

#include "gpu/device_memory.h"

namespace ringdp::backend {

// Flat, of the zeros that the memory holds. Its end, on any thread, lets go of the memory; the last to do so waits for the
// device, as nothing else orders the end of the memory after what streams still do with it.
at::Tensor tensor_in(std::shared_ptr<gpu::DeviceMemory> memory, int64_t elements, at::ScalarType dtype,
                     c10::Device device);

}  // namespace ringdp::backend
