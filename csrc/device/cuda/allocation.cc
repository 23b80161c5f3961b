#include "device/cuda/allocation.h"

#include <cstring>
#include <exception>

#include "device/cuda/driver.h"

namespace ringdp::gpu {
namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemLocation place_of(int device) {
  CUmemLocation place{};
  place.type = CU_MEM_LOCATION_TYPE_DEVICE;
  place.id = device;
  return place;
}

void release(CUmemGenericAllocationHandle physical) {
  check("cuMemRelease", driver_function<decltype(&cuMemRelease)>("cuMemRelease")(physical));
}

void give_back(CUdeviceptr address, size_t bytes) {
  check("cuMemAddressFree", driver_function<decltype(&cuMemAddressFree)>("cuMemAddressFree")(address, bytes));
}

void unmap(CUdeviceptr address, size_t bytes) {
  check("cuMemUnmap", driver_function<decltype(&cuMemUnmap)>("cuMemUnmap")(address, bytes));
}

CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address = 0;
  const auto call = driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  check("cuMemAddressReserve(" + std::to_string(bytes) + " bytes)", call(&address, bytes, kBlockBytes, 0, 0));
  return address;
}

void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle physical) {
  check("cuMemMap", driver_function<decltype(&cuMemMap)>("cuMemMap")(address, bytes, 0, physical, 0));
}

void allow(CUdeviceptr address, size_t bytes, int device) {
  CUmemAccessDesc access{};
  access.location = place_of(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check("cuMemSetAccess", driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess")(address, bytes, &access, 1));
}

// Undoes all that it can, whatever fails; the first failure, or null. `address` 0: nothing was reserved.
std::exception_ptr take_down(CUdeviceptr address, size_t bytes, bool mapped, CUmemGenericAllocationHandle physical) {
  std::exception_ptr first;
  const auto attempt = [&](auto undo) {
    try {
      undo();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  if (mapped) attempt([&] { unmap(address, bytes); });
  if (address != 0) attempt([&] { give_back(address, bytes); });
  attempt([&] { release(physical); });
  return first;
}

// Maps `physical`; takes ownership of it even when that fails.
Allocation placed(int device, size_t bytes, CUmemGenericAllocationHandle physical) {
  CUdeviceptr address = 0;
  bool mapped = false;
  try {
    address = reserve(bytes);
    map(address, bytes, physical);
    mapped = true;
    allow(address, bytes, device);
  } catch (...) {
    take_down(address, bytes, mapped, physical);  // what failed before says more
    throw;
  }
  return {reinterpret_cast<char*>(address), bytes, device, true, physical};
}

bool can_be_exported(void* memory, decltype(&cuPointerGetAttribute) ask) {
  int capable = 0;
  return ask(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(memory)) ==
             CUDA_SUCCESS &&
         capable != 0;
}

// To all that the peer has allocated by cudaMalloc, and will.
void let_access_peer(int device, int peer) {
  int can = 0;
  check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, device, peer));
  if (!can) {
    refuse("device " + std::to_string(device) + " cannot access memory of device " + std::to_string(peer) +
           "; `nvidia-smi topo -p2p r` shows which can");
  }
  const OnDevice here(device);
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // clears it, as it is no error here
    return;
  }
  check("cudaDeviceEnablePeerAccess(" + std::to_string(peer) + ")", result);
}

}  // namespace

void let_access(const Allocation& allocation, int device) {
  if (device == allocation.device) return;
  if (!allocation.by_fd) return let_access_peer(device, allocation.device);
  allow(reinterpret_cast<CUdeviceptr>(allocation.base), allocation.bytes, device);
}

Allocation allocate_by_fd(int device, size_t bytes) {
  const OnDevice here(device);
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.requestedHandleTypes = kFd;
  kind.location = place_of(device);
  CUmemGenericAllocationHandle physical = 0;
  check("cuMemCreate(" + std::to_string(bytes) + " bytes)",
        driver_function<decltype(&cuMemCreate)>("cuMemCreate")(&physical, bytes, &kind, 0),
        "the device is out of memory, or cannot share it by file descriptor (rd_gpu_describe: shares_fds)");
  return placed(device, bytes, physical);
}

int export_fd(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  int fd = -1;
  const auto call = driver_function<decltype(&cuMemExportToShareableHandle)>("cuMemExportToShareableHandle");
  check("cuMemExportToShareableHandle", call(&fd, allocation.physical, kFd, 0));
  return fd;
}

Allocation open_fd(int device, size_t bytes, int fd) {
  const OnDevice here(device);
  CUmemGenericAllocationHandle physical = 0;
  const auto call = driver_function<decltype(&cuMemImportFromShareableHandle)>("cuMemImportFromShareableHandle");
  // The API takes the descriptor itself, cast to a pointer.
  check("cuMemImportFromShareableHandle(descriptor " + std::to_string(fd) + ")",
        call(&physical, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kFd),
        "give the descriptor that came with the handle");
  return placed(device, bytes, physical);
}

void free_by_fd(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  const auto failure =
      take_down(reinterpret_cast<CUdeviceptr>(allocation.base), allocation.bytes, true, allocation.physical);
  if (failure) std::rethrow_exception(failure);
}

Allocation allocate_legacy(int device, size_t bytes) {
  const OnDevice here(device);
  const auto ask = driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  void* memory = nullptr;
  check("cudaMalloc(" + std::to_string(bytes) + " bytes)", cudaMalloc(&memory, bytes),
        "the device is out of memory: smaller buckets, or fewer processes on it");
  if (can_be_exported(memory, ask)) return {static_cast<char*>(memory), bytes, device, false, 0};
  cudaFree(memory);
  return {};
}

void free_legacy(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  check("cudaFree", cudaFree(allocation.base));
}

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
