// The driver interface, found by name.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "cuda/answered.h"
#include "cuda/entry.h"
#include "stand_in/memory.h"

using namespace stand_in;

namespace {

const Entry kEntries[] = {
    entry("cuGetErrorString", cuGetErrorString),
    entry("cuDeviceGetAttribute", cuDeviceGetAttribute),
    entry("cuDeviceGetUuid", cuDeviceGetUuid),
    entry("cuCtxGetCurrent", cuCtxGetCurrent),
    entry("cuCtxSetCurrent", cuCtxSetCurrent),
    entry("cuPointerGetAttribute", cuPointerGetAttribute),
    entry("cuStreamWaitValue32", cuStreamWaitValue32),
    entry("cuStreamWaitValue64", cuStreamWaitValue64),
    entry("cuStreamWriteValue32", cuStreamWriteValue32),
    entry("cuStreamWriteValue64", cuStreamWriteValue64),
    entry("cuStreamBatchMemOp", cuStreamBatchMemOp),
    entry("cuMemCreate", cuMemCreate),
    entry("cuMemRelease", cuMemRelease),
    entry("cuMemExportToShareableHandle", cuMemExportToShareableHandle),
    entry("cuMemImportFromShareableHandle", cuMemImportFromShareableHandle),
    entry("cuMemAddressReserve", cuMemAddressReserve),
    entry("cuMemAddressFree", cuMemAddressFree),
    entry("cuMemMap", cuMemMap),
    entry("cuMemUnmap", cuMemUnmap),
    entry("cuMemSetAccess", cuMemSetAccess),
};

constexpr unsigned kMostInBatch = 255;

CUresult result_of(cudaError_t error) { return static_cast<CUresult>(error); }

template <class Word>
Word* word_at(CUdeviceptr address) {
  auto* const word = reinterpret_cast<Word*>(address);
  if (address % sizeof(Word) == 0 && is_device_memory(word, sizeof(Word))) return word;
  throw Refusal(cudaErrorInvalidValue, "no word that devices reach");
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return answered([&] {
    void* const known = found_in(kEntries, name);
    *found = known != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    if (known != nullptr) *function = known;
  });
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(result));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, int) {
  return result_of(answered([&] {
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
        return void(*value = machine().flush);
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        return void(*value = machine().fd);
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        return void(*value = machine().stream_waits);
      case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return void(*value = machine().is == "mps");
    }
    throw Refusal(cudaErrorInvalidValue, "an attribute that this driver does not know");
  }));
}

// As CUDA's second version of it: an instance of a partitioned GPU has one of its own.
CUresult cuDeviceGetUuid(CUuuid* uuid, int device) {
  return result_of(answered([&] { std::snprintf(uuid->bytes, sizeof uuid->bytes, "stand-in %d", device); }));
}

// The context of device k is k + 1, and null is none.
CUresult cuCtxGetCurrent(CUcontext* current) {
  return result_of(answered([&] { *current = reinterpret_cast<CUcontext>(intptr_t{context()} + 1); }));
}

CUresult cuCtxSetCurrent(CUcontext current) {
  return result_of(answered([&] { set_context(static_cast<int>(reinterpret_cast<intptr_t>(current)) - 1); }));
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr memory) {
  return result_of(answered([&] {
    const bool known = is_device_memory(reinterpret_cast<void*>(memory), 1);
    if (!known) throw Refusal(cudaErrorInvalidValue, "not device memory");
    *static_cast<int*>(value) = machine().ipc;
  }));
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, uint32_t value, unsigned) {
  return result_of(answered([&] { wait_value(known(stream), word_at<uint32_t>(word), value); }));
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr word, uint64_t value, unsigned) {
  return result_of(answered([&] {
    if (!machine().stream_waits) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has stream_waits");
    wait_value(known(stream), word_at<uint64_t>(word), value);
  }));
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr word, uint32_t value, unsigned) {
  return result_of(answered([&] { write_value(known(stream), word_at<uint32_t>(word), value); }));
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr word, uint64_t value, unsigned) {
  return result_of(answered([&] {
    if (!machine().stream_waits) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has stream_waits");
    write_value(known(stream), word_at<uint64_t>(word), value);
  }));
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned all, CUstreamBatchMemOpParams* operations, unsigned flags) {
  return result_of(answered([&] {
    if (!machine().stream_waits) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has stream_waits");
    if (all > kMostInBatch || flags != 0) throw Refusal(cudaErrorInvalidValue, "a batch that is none");
    for (unsigned i = 0; i < all; ++i) {
      const auto& one = operations[i].waitValue;
      if (one.operation == CU_STREAM_MEM_OP_BARRIER) {
        if (!machine().barriers) throw Refusal(cudaErrorInvalidValue, "STAND_IN_LACKS has barriers");
        count("CU_STREAM_MEM_OP_BARRIER");
        continue;
      }
      auto* const word = word_at<uint64_t>(one.address);
      if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64) {
        if ((one.flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) {
          if (!machine().flush) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has flush");
          count("CU_STREAM_WAIT_VALUE_FLUSH");
        }
        wait_value(known(stream), word, one.value64);
      } else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
        write_value(known(stream), word, one.value64);
      } else {
        throw Refusal(cudaErrorInvalidValue, "an operation that is none");
      }
    }
  }));
}

// Memory by descriptor: every cuMemCreate is a file in memory, which lives as long as a handle, a mapping or a
// descriptor of it does.

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

constexpr int kElsewhere = -1;

struct Physical {
  int fd;
  size_t bytes;
  int device;  // kElsewhere: another process has created it
};

struct Mapped {
  size_t bytes;
  int device;
};

struct VirtualMemory {
  std::mutex mutex;  // guards what follows
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  std::map<CUdeviceptr, size_t> reserved;  // bytes
  std::map<CUdeviceptr, Mapped> mapped;
  CUmemGenericAllocationHandle next = 1;
};

VirtualMemory& virtual_memory() {
  static auto* const instance = new VirtualMemory;
  return *instance;
}

template <class Text>
CUresult locked(Text text, const char* call = __builtin_FUNCTION()) {
  const auto with_lock = [&] {
    VirtualMemory& all = virtual_memory();
    const std::lock_guard lock(all.mutex);
    text(all);
  };
  return static_cast<CUresult>(answered(with_lock, call));
}

void require(bool holds, const char* what) {
  if (!holds) throw Refusal(cudaErrorInvalidValue, what);
}

void require_fd() {
  if (!machine().fd) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has fd");
}

const Physical& physical_of(const VirtualMemory& all, CUmemGenericAllocationHandle handle) {
  const auto found = all.physical.find(handle);
  require(found != all.physical.end(), "no handle, or released already");
  return found->second;
}

size_t bytes_of_device(const VirtualMemory& all, int device) {
  size_t bytes = 0;
  for (const auto& [handle, physical] : all.physical) bytes += physical.device == device ? physical.bytes : 0;
  return bytes;
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
    if (bytes > kDeviceBytes - bytes_of_device(all, kind->location.id)) {
      throw Refusal(cudaErrorMemoryAllocation, "more than the device has left");
    }
    const int fd = memfd_create("stand-in-physical", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw Refusal(cudaErrorMemoryAllocation, "memfd");
    all.physical[*handle = all.next++] = {fd, bytes, kind->location.id};
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return locked([&](VirtualMemory& all) {
    close(physical_of(all, handle).fd);
    all.physical.erase(handle);
  });
}

CUresult cuMemExportToShareableHandle(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                                      unsigned long long) {
  return locked(
      [&](VirtualMemory& all) { *static_cast<int*>(fd) = fcntl(physical_of(all, handle).fd, F_DUPFD_CLOEXEC, 0); });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  return locked([&](VirtualMemory& all) {
    require_fd();
    const int own = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(fd)), F_DUPFD_CLOEXEC, 0);
    require(own >= 0, "no descriptor");
    struct stat facts {};
    fstat(own, &facts);
    all.physical[*handle = all.next++] = {own, static_cast<size_t>(facts.st_size), kElsewhere};
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
    const Physical& physical = physical_of(all, handle);
    require(physical.bytes == bytes, "not the size of the physical memory");
    map_at(address, bytes, physical.fd, PROT_NONE);
    add_range(reinterpret_cast<void*>(address), bytes);
    if (physical.device == kElsewhere) mark_as_peers(reinterpret_cast<void*>(address));
    all.mapped[address] = {bytes, physical.device};
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  return locked([&](VirtualMemory& all) {
    require(all.mapped.count(address), "not mapped");
    require(count == 1, "one device at a time");
    const int device = access->location.id, owner = all.mapped[address].device;
    require(machine().peers || owner == kElsewhere || owner == device, "STAND_IN_LACKS has peers");
    require(mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    let_reach(reinterpret_cast<void*>(address), device);
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  wait_for_copies_without_end();
  return locked([&](VirtualMemory& all) {
    require(all.mapped.count(address) && all.mapped[address].bytes == bytes, "not what was mapped");
    remove_range(reinterpret_cast<void*>(address));
    map_at(address, bytes, -1, PROT_NONE);
    all.mapped.erase(address);
  });
}

size_t stand_in::held_virtually() {
  VirtualMemory& all = virtual_memory();
  const std::lock_guard lock(all.mutex);
  return all.physical.size() + all.reserved.size() + all.mapped.size();
}
