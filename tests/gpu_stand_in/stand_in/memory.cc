#include "stand_in/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "stand_in/machine.h"
#include "stand_in/range_lock.h"
#include "stand_in/refusal.h"
#include "stand_in/stream.h"

namespace stand_in {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMostGarbage = size_t{4} << 20;  // bytes at the start of an allocation
constexpr uint64_t kMagic = 0x5354414e44494e21;

struct Part {
  size_t offset, bytes;
  int device;
};

// A device's memory as this process has it.
class Device {
 public:
  // The lowest place that is wide enough.
  size_t take(size_t bytes) {
    open();
    size_t at = 0;
    for (const auto& [offset, taken] : taken_) {
      if (offset - at >= bytes) break;
      at = offset + taken;
    }
    if (at + bytes > kDeviceBytes) throw Refusal(cudaErrorMemoryAllocation, "the device has no room for them");
    taken_[at] = bytes;
    return at;
  }
  void give_back(size_t offset) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, taken_.at(offset));
    taken_.erase(offset);
  }
  int fd() const { return fd_; }

 private:
  void open() {
    if (fd_ >= 0) return;
    fd_ = memfd_create("stand-in-device", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, kDeviceBytes) != 0) throw Refusal(cudaErrorMemoryAllocation, "memfd_create");
  }
  int fd_ = -1;
  std::map<size_t, size_t> taken_;  // bytes by offset
};

struct Import {
  IpcHandle handle;
  int device, fd;
};

struct Memory {
  std::mutex mutex;  // guards what follows
  std::array<Device, 8> devices;
  std::map<void*, Part> own;
  std::map<void*, Import> imports;
};

Memory& memory_of_process() {
  static auto* const instance = new Memory;
  return *instance;
}

void* map_file(int fd, size_t offset, size_t bytes, cudaError_t otherwise) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) throw Refusal(otherwise, std::string("mmap: ") + std::strerror(errno));
  add_reachable(at, bytes);
  return at;
}

void unmap(void* memory, size_t bytes) {
  remove_reachable(memory);
  munmap(memory, bytes);
}

uint64_t inode_of(int fd) {
  struct stat facts {};
  return fstat(fd, &facts) == 0 ? facts.st_ino : 0;
}

// The exporter's file with a lock on the handle's part.
int open_file(const IpcHandle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0 && inode_of(fd) == handle.inode && lock_part(fd, handle.offset, handle.bytes)) return fd;
  if (fd >= 0) close(fd);
  throw Refusal(cudaErrorMapBufferObjectFailed, "the exporter's memory is gone: " + path);
}

void check_importable(const Memory& memory, int device, const IpcHandle& handle) {
  if (!machine().ipc) throw Refusal(cudaErrorMapBufferObjectFailed, "STAND_IN_LACKS has ipc");
  if (handle.magic != kMagic) throw Refusal(cudaErrorInvalidValue, "this is no handle");
  if (handle.process == getpid()) throw Refusal(cudaErrorDeviceUninitialized, "this process exported it itself");
  for (const auto& [at, known] : memory.imports) {
    const bool same = known.handle.inode == handle.inode && known.handle.offset == handle.offset;
    if (same && known.device == device) throw Refusal(cudaErrorAlreadyMapped, "this process has it open");
  }
}

}  // namespace

void* allocate(int device, size_t bytes) {
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  Memory& memory = memory_of_process();
  const std::lock_guard lock(memory.mutex);
  Device& its = memory.devices.at(device);
  const size_t offset = its.take(whole);
  void* const at = map_file(its.fd(), offset, whole, cudaErrorMemoryAllocation);
  std::memset(at, 0xA5, std::min(whole, kMostGarbage));
  memory.own[at] = {offset, whole, device};
  return at;
}

void free_memory(void* address) {
  if (address == nullptr) return;
  Memory& memory = memory_of_process();
  Part part{};
  {
    const std::lock_guard lock(memory.mutex);
    const auto found = memory.own.find(address);
    if (found == memory.own.end()) throw Refusal(cudaErrorInvalidValue, "not the first byte of an allocation");
    part = found->second;
    if (others_lock(memory.devices[part.device].fd(), part.offset, part.bytes)) {
      throw Refusal(cudaErrorIllegalState, "freed while another process still has it open");
    }
  }
  drain_device(part.device);
  const std::lock_guard lock(memory.mutex);
  memory.own.erase(address);
  unmap(address, part.bytes);
  memory.devices[part.device].give_back(part.offset);
}

IpcHandle export_memory(void* address) {
  Memory& memory = memory_of_process();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.own.find(address);
  if (!machine().ipc || found == memory.own.end()) throw Refusal(cudaErrorInvalidValue, "this cannot be exported");
  const Part& part = found->second;
  const int fd = memory.devices[part.device].fd();
  return {kMagic, part.bytes, part.offset, inode_of(fd), getpid(), fd};
}

void* import_memory(int device, const IpcHandle& handle) {
  Memory& memory = memory_of_process();
  const std::lock_guard lock(memory.mutex);
  check_importable(memory, device, handle);
  const int fd = open_file(handle);
  void* const at = map_file(fd, handle.offset, handle.bytes, cudaErrorMapBufferObjectFailed);
  memory.imports[at] = {handle, device, fd};
  return at;
}

void close_import(void* address) {
  Memory& memory = memory_of_process();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.imports.find(address);
  if (found == memory.imports.end()) throw Refusal(cudaErrorInvalidValue, "not memory that was opened");
  unmap(address, found->second.handle.bytes);
  close(found->second.fd);
  memory.imports.erase(found);
}

}  // namespace stand_in
