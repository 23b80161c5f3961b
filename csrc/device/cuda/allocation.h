// Device memory that processes can share, either by legacy IPC handles or by file descriptors.
//
// Functions throw Failure. Sizes are whole multiples of kBlockBytes, so that an allocation shares no block with
// another: exporting one shows the whole block to the importer. The caller owns what it is given.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ringdp::gpu {

constexpr size_t kBlockBytes = size_t{2} << 20;  // also the granularity of cuMemCreate

struct Allocation {
  char* base = nullptr;
  size_t bytes = 0;
  int device = 0;
  bool by_fd = false;
  uint64_t physical = 0;  // by_fd: a CUmemGenericAllocationHandle
};

struct LegacyKey {
  unsigned char bytes[64];
};

// Lets kernels on another device of this process access it, for as long as it lives.
void let_access(const Allocation& allocation, int device);

// cudaMalloc. `base` is null when the memory cannot be exported.
Allocation allocate_legacy(int device, size_t bytes);
void free_legacy(const Allocation& allocation);
LegacyKey export_legacy(const Allocation& allocation);
Allocation open_legacy(int device, size_t bytes, const LegacyKey& key);
void close_legacy(const Allocation& allocation);

// cuMemCreate, mapped on `device`. Freeing and closing are the same.
Allocation allocate_by_fd(int device, size_t bytes);
int export_fd(const Allocation& allocation);  // a new descriptor
Allocation open_fd(int device, size_t bytes, int fd);
void free_by_fd(const Allocation& allocation);

}  // namespace ringdp::gpu
