// Host memory that devices map: pinned anew, or memory that exists, e.g. a segment that all processes of a host share.
#include <cstring>

#include "gpu/cuda/beside_captures.h"
#include "gpu/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

void* mapped_address(void* host) {
  void* address = nullptr;
  check("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&address, host, 0));
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
  *device_address = mapped_address(memory);
  *host = memory;
}

void map(void* host, size_t bytes, void** device_address) {
  refuse_null("rd_gpu_host_map", "host", host);
  refuse_null("rd_gpu_host_map", "device_address", device_address);
  check("cudaHostRegister(" + std::to_string(bytes) + " bytes)",
        cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "it must be whole pages, mapped by this process and not registered before");
  *device_address = mapped_address(host);
}

}  // namespace
}  // namespace ringdp::gpu

using ringdp::gpu::check;
using ringdp::gpu::guarded_beside_captures;

int rd_gpu_host_alloc(size_t bytes, void** host, void** device_address) {
  return guarded_beside_captures([&] { ringdp::gpu::allocate(bytes, host, device_address); });
}

int rd_gpu_host_free(void* host) {
  return guarded_beside_captures([&] { check("cudaFreeHost", cudaFreeHost(host), "free what rd_gpu_host_alloc gave, once"); });
}

int rd_gpu_host_map(void* host, size_t bytes, void** device_address) {
  return guarded_beside_captures([&] { ringdp::gpu::map(host, bytes, device_address); });
}

int rd_gpu_host_unmap(void* host) {
  return guarded_beside_captures([&] {
    check("cudaHostUnregister", cudaHostUnregister(host), "unmap what rd_gpu_host_map mapped, once");
  });
}
