// Memory that this process has allocated to share, and memory of others that it has mapped, with a count per mapping.
//
// Thread-safe, and no lock is held while the driver allocates, maps or frees: there it may wait until a device is idle,
// which may need another thread to make or end a group. Throws Failure.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "device/cuda/allocation.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {

// Returns when it is done, whatever kernels of the device wait for; Failure(RD_GPU_LATE) after five seconds.
void copy_now(int device, void* to, const void* from, size_t bytes);
// Whether such a copy is still under way: the driver would wait for it, without end, before it frees or unmaps
// anything.
bool has_late_copies();

class SharedMemory {
 public:
  void* allocate(int device, size_t bytes, int sharing);
  void free(void* memory);
  rd_gpu_handle exported(void* memory, int* fd);
  void* import(int device, const rd_gpu_handle& handle, int fd);
  void unimport(void* memory);

 private:
  struct Own {
    Allocation allocation;
    std::string key;  // empty until exported
    int imports = 0;  // by this process itself, whose ranks may be threads
  };
  struct Mapping {
    Allocation allocation;
    int imports = 0;
    bool changes = false;  // a thread maps or unmaps it now
  };
  using MappingKey = std::pair<int, std::string>;  // device, key

  Own* own_around(const void* memory);
  std::map<MappingKey, Mapping>::iterator mapping_around(const void* memory);

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::map<char*, Own> own_;
  std::map<MappingKey, Mapping> mappings_;
};

}  // namespace ringdp::gpu
