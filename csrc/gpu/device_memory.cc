#include "gpu/device_memory.h"

namespace ringdp::gpu {

DeviceMemory::DeviceMemory(const Functions& functions, int device, int64_t bytes, int sharing) : functions_(functions) {
  void* memory = nullptr;
  require(functions, functions.alloc(device, static_cast<size_t>(bytes), sharing, &memory));
  data_ = static_cast<char*>(memory);
}

DeviceMemory::~DeviceMemory() { functions_.free(data_); }

rd_gpu_handle DeviceMemory::handle(UniqueFd* fd) const {
  rd_gpu_handle handle{};
  int descriptor = -1;
  require(functions_, functions_.export_memory(data_, &handle, &descriptor));
  fd->reset(descriptor);
  return handle;
}

}  // namespace ringdp::gpu
