#include <cstring>

#include "gpu/cuda/allocation.h"
#include "gpu/cuda/driver.h"
#include "gpu/cuda/on_device.h"

namespace ringdp::gpu {
namespace {

bool can_be_exported(void* memory) {
  int capable = 0;
  const auto ask = driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  return ask(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(memory)) ==
             CUDA_SUCCESS &&
         capable != 0;
}

}  // namespace

Allocation allocate_legacy(int device, size_t bytes) {
  const OnDevice here(device);
  void* memory = nullptr;
  check("cudaMalloc(" + std::to_string(bytes) + " bytes)", cudaMalloc(&memory, bytes),
        "the device is out of memory: smaller buckets, or fewer processes on it");
  if (can_be_exported(memory)) return {static_cast<char*>(memory), bytes, device, false, 0};
  cudaFree(memory);
  return {};
}

void free_legacy(const Allocation& allocation) { check("cudaFree", cudaFree(allocation.base)); }

LegacyKey export_legacy(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  cudaIpcMemHandle_t handle;
  check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, allocation.base), "take it with RD_GPU_SHARE_FD");
  LegacyKey key;
  static_assert(sizeof key.bytes == sizeof handle);
  std::memcpy(key.bytes, &handle, sizeof handle);
  return key;
}

Allocation open_legacy(int device, size_t bytes, const LegacyKey& key) {
  const OnDevice here(device);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, key.bytes, sizeof handle);
  void* base = nullptr;
  check("cudaIpcOpenMemHandle", cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess),
        "where a sandbox or a container forbids it, the exporter takes its memory with RD_GPU_SHARE_FD");
  return {static_cast<char*>(base), bytes, device, false, 0};
}

void close_legacy(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  check("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(allocation.base));
}

}  // namespace ringdp::gpu
