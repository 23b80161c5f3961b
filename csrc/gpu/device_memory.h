// Memory of a rank's device that its peers can map. Whoever frees it knows that nobody has it mapped any more.
#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include "gpu/library.h"

namespace ringdp::gpu {

class DeviceMemory {
 public:
  // Zero at first. `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device has not so much.
  DeviceMemory(const Functions& functions, int device, int64_t bytes, int sharing);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return data_; }
  rd_gpu_handle handle(UniqueFd* fd) const;  // `fd` holds one afterwards when the handle needs it

 private:
  const Functions& functions_;
  char* data_ = nullptr;
};

}  // namespace ringdp::gpu
