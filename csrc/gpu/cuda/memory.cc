// The C face of the memory that ranks share.
#include "gpu/cuda/beside_captures.h"
#include "gpu/cuda/shared_memory.h"
#include "gpu/ringdp_gpu.h"

namespace {

// Never destroyed: the driver may be gone before static objects are, and takes its memory along.
ringdp::gpu::SharedMemory& shared_memory() {
  static auto* const instance = new ringdp::gpu::SharedMemory;
  return *instance;
}

}  // namespace

using ringdp::gpu::guarded_beside_captures;
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
