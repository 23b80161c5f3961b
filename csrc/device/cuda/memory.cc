// The C interface of the memory that ranks share.
#include <cstring>

#include "device/cuda/driver.h"
#include "device/cuda/shared_memory.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

namespace {

// `undo` gives `host` back if it has no address.
void* mapped_address(void* host, cudaError_t (*undo)(void*)) {
  void* address = nullptr;
  try {
    check("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&address, host, 0));
  } catch (...) {
    undo(host);
    throw;
  }
  return address;
}

void allocate(size_t bytes, void** host, void** device_address) {
  refuse_null("rd_gpu_host_alloc", "host", host);
  refuse_null("rd_gpu_host_alloc", "device_address", device_address);
  if (bytes == 0) refuse("rd_gpu_host_alloc: 0 bytes; ask for at least 1");
  void* memory = nullptr;
  check("cudaHostAlloc(" + std::to_string(bytes) + " bytes)",
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
        "the host is out of memory that can be pinned (ulimit -l, the container's limit)");
  std::memset(memory, 0, bytes);
  *device_address = mapped_address(memory, cudaFreeHost);
  *host = memory;
}

void map(void* host, size_t bytes, void** device_address) {
  refuse_null("rd_gpu_host_map", "host", host);
  refuse_null("rd_gpu_host_map", "device_address", device_address);
  check("cudaHostRegister(" + std::to_string(bytes) + " bytes)",
        cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "it must be whole pages, mapped by this process and not registered before");
  *device_address = mapped_address(host, cudaHostUnregister);
}

}  // namespace

}  // namespace

}  // namespace ringdp::gpu

namespace {

// Never destroyed: the driver may be unloaded before static destructors run, and frees its memory itself.
ringdp::gpu::SharedMemory& shared_memory() {
  static auto* const instance = new ringdp::gpu::SharedMemory;
  return *instance;
}

}  // namespace

using ringdp::gpu::guarded_beside_captures;
using ringdp::gpu::has_late_copies;
using ringdp::gpu::refuse_null;

int rd_gpu_alloc(int device, size_t bytes, int sharing, void** out) {
  return guarded_beside_captures([&] {
    refuse_null("rd_gpu_alloc", "out", out);
    *out = shared_memory().allocate(device, bytes, sharing);
  });
}

int rd_gpu_free(void* memory) {
  return guarded_beside_captures([&] { shared_memory().free(memory); });
}

int rd_gpu_export(void* memory, rd_gpu_handle* out, int* fd) {
  return guarded_beside_captures([&] {
    refuse_null("rd_gpu_export", "out", out);
    refuse_null("rd_gpu_export", "fd", fd);
    *out = shared_memory().exported(memory, fd);
  });
}

int rd_gpu_import(int device, const rd_gpu_handle* handle, int fd, void** out) {
  return guarded_beside_captures([&] {
    refuse_null("rd_gpu_import", "handle", handle);
    refuse_null("rd_gpu_import", "out", out);
    *out = shared_memory().import(device, *handle, fd);
  });
}

int rd_gpu_unimport(void* memory) {
  return guarded_beside_captures([&] { shared_memory().unimport(memory); });
}

int rd_gpu_copy_now(int device, void* to, const void* from, size_t bytes) {
  return guarded_beside_captures([&] {
    refuse_null("rd_gpu_copy_now", "to", to);
    refuse_null("rd_gpu_copy_now", "from", from);
    ringdp::gpu::copy_now(device, to, from, bytes);
  });
}

using ringdp::gpu::check;

int rd_gpu_host_alloc(size_t bytes, void** host, void** device_address) {
  return guarded_beside_captures([&] { ringdp::gpu::allocate(bytes, host, device_address); });
}

int rd_gpu_host_free(void* host) {
  return guarded_beside_captures([&] {
    if (has_late_copies()) return;
    check("cudaFreeHost", cudaFreeHost(host), "free memory from rd_gpu_host_alloc, once");
  });
}

int rd_gpu_host_map(void* host, size_t bytes, void** device_address) {
  return guarded_beside_captures([&] { ringdp::gpu::map(host, bytes, device_address); });
}

int rd_gpu_host_unmap(void* host) {
  return guarded_beside_captures([&] {
    if (has_late_copies()) return;
    check("cudaHostUnregister", cudaHostUnregister(host), "unmap memory from rd_gpu_host_map, once");
  });
}
