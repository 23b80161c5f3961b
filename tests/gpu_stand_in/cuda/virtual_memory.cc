// Memory by descriptor: every cuMemCreate is a file in memory, which lives as long as a handle, a mapping or a
// descriptor of it does.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "cuda/answered.h"
#include "stand_in/memory.h"

using namespace stand_in;

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

struct VirtualMemory {
  std::mutex mutex;  // guards what follows
  std::map<CUmemGenericAllocationHandle, int> files;  // descriptors of physical memory
  std::map<CUdeviceptr, size_t> reserved, mapped;     // bytes
  CUmemGenericAllocationHandle next = 1;
};

VirtualMemory& virtual_memory() {
  static auto* const instance = new VirtualMemory;
  return *instance;
}

template <class Text>
CUresult locked(Text text) {
  return static_cast<CUresult>(answered([&] {
    VirtualMemory& all = virtual_memory();
    const std::lock_guard lock(all.mutex);
    text(all);
  }));
}

void require(bool holds, const char* what) {
  if (!holds) throw Refusal(cudaErrorInvalidValue, what);
}

void require_fd() {
  if (!machine().fd) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has fd");
}

int file_of(VirtualMemory& all, CUmemGenericAllocationHandle handle) {
  const auto found = all.files.find(handle);
  require(found != all.files.end(), "no handle, or released already");
  return found->second;
}

// At its place; `fd` -1: address space alone.
void* map_at(CUdeviceptr address, size_t bytes, int fd, int protection) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* const wish = reinterpret_cast<void*>(address);
  void* const at = mmap(wish, bytes, protection, flags | (address != 0 ? MAP_FIXED : 0), fd, 0);
  if (at == MAP_FAILED) throw Refusal(cudaErrorMemoryAllocation, "mmap");
  return at;
}

}  // namespace

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* kind,
                     unsigned long long) {
  return locked([&](VirtualMemory& all) {
    require_fd();
    require(bytes > 0 && bytes % kGranularity == 0, "not whole multiples of the granularity");
    require(kind->location.id >= 0 && kind->location.id < machine().devices, "no such device");
    if (bytes > kDeviceBytes) throw Refusal(cudaErrorMemoryAllocation, "more than a device has");
    const int fd = memfd_create("stand-in-physical", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw Refusal(cudaErrorMemoryAllocation, "memfd");
    all.files[*handle = all.next++] = fd;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return locked([&](VirtualMemory& all) {
    close(file_of(all, handle));
    all.files.erase(handle);
  });
}

CUresult cuMemExportToShareableHandle(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                                      unsigned long long) {
  return locked([&](VirtualMemory& all) {
    *static_cast<int*>(fd) = fcntl(file_of(all, handle), F_DUPFD_CLOEXEC, 0);
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  return locked([&](VirtualMemory& all) {
    require_fd();
    const int own = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
    require(own >= 0, "no descriptor");
    all.files[*handle = all.next++] = own;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  return locked([&](VirtualMemory& all) {
    *address = reinterpret_cast<CUdeviceptr>(map_at(0, bytes, -1, PROT_NONE));
    all.reserved[*address] = bytes;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return locked([&](VirtualMemory& all) {
    require(all.reserved.count(address) && all.reserved[address] == bytes, "not what was reserved");
    require(!all.mapped.count(address), "still mapped");
    munmap(reinterpret_cast<void*>(address), bytes);
    all.reserved.erase(address);
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  return locked([&](VirtualMemory& all) {
    require(all.reserved.count(address) && !all.mapped.count(address), "not reserved, or mapped already");
    struct stat facts {};
    fstat(file_of(all, handle), &facts);
    require(static_cast<size_t>(facts.st_size) == bytes, "not the size of the physical memory");
    map_at(address, bytes, file_of(all, handle), PROT_NONE);
    all.mapped[address] = bytes;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  return locked([&](VirtualMemory& all) {
    require(all.mapped.count(address), "not mapped");
    require(mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    add_reachable(reinterpret_cast<void*>(address), bytes);
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return locked([&](VirtualMemory& all) {
    require(all.mapped.count(address) && all.mapped[address] == bytes, "not what was mapped");
    remove_reachable(reinterpret_cast<void*>(address));
    map_at(address, bytes, -1, PROT_NONE);
    all.mapped.erase(address);
  });
}
