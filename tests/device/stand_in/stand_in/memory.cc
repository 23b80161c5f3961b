#include "stand_in/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "stand_in/machine.h"
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

  void* map(size_t offset, size_t bytes) { return put(offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_); }
  void unmap(size_t offset, size_t bytes) { put(offset, bytes, PROT_NONE, kNothing, -1); }

 private:
  static constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;  // address space alone

  void open() {
    if (fd_ >= 0) return;
    void* const at = mmap(nullptr, kDeviceBytes, PROT_NONE, kNothing, -1, 0);
    if (at == MAP_FAILED) throw Refusal(cudaErrorMemoryAllocation, "no address space for a device");
    base_ = static_cast<char*>(at);
    fd_ = memfd_create("stand-in-device", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, kDeviceBytes) != 0) throw Refusal(cudaErrorMemoryAllocation, "memfd_create");
    lock_part(fd_, kDeviceBytes, 1);
  }
  void* put(size_t offset, size_t bytes, int protection, int flags, int fd) {
    const off_t begin = fd < 0 ? 0 : static_cast<off_t>(offset);
    void* const at = mmap(base_ + offset, bytes, protection, flags | MAP_FIXED, fd, begin);
    if (at == MAP_FAILED) throw Refusal(cudaErrorMemoryAllocation, std::string("mmap: ") + std::strerror(errno));
    return at;
  }

  int fd_ = -1;
  char* base_ = nullptr;            // of its address space here
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

void* map_import(const IpcHandle& handle, int fd) {
  const off_t begin = static_cast<off_t>(handle.offset);
  void* const at = mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
  if (at == MAP_FAILED) {
    throw Refusal(cudaErrorMapBufferObjectFailed, std::string("mmap: ") + std::strerror(errno));
  }
  add_range(at, handle.bytes);
  return at;
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
  void* const at = its.map(offset, whole);
  add_range(at, whole);
  give_to(device, at);
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
  remove_range(address);
  memory.devices[part.device].unmap(part.offset, part.bytes);
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
  void* const at = map_import(handle, fd);
  let_reach_while_lent(at, device, fd);
  mark_as_peers(at);
  memory.imports[at] = {handle, device, fd};
  return at;
}

void close_import(void* address) {
  wait_for_copies_without_end();
  Memory& memory = memory_of_process();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.imports.find(address);
  if (found == memory.imports.end()) throw Refusal(cudaErrorInvalidValue, "not memory that was opened");
  remove_range(address);
  munmap(address, found->second.handle.bytes);
  close(found->second.fd);
  memory.imports.erase(found);
}

// Which addresses devices reach.

namespace {

constexpr int kNobodys = -1;

struct Range {
  size_t bytes;
  unsigned devices;      // that reach it, one bit each
  int owner;             // the device that it was given to
  int lent;              // a descriptor of another process's memory, else kNobodys
  bool of_peer = false;  // of another process
};

struct Ranges {
  std::mutex mutex;  // guards the rest
  std::map<uintptr_t, Range> by_address;
  std::array<unsigned, 8> peers{};  // of each device, those that reach its memory

  // The one that holds all these bytes, or none: end().
  std::map<uintptr_t, Range>::iterator around(uintptr_t begin, size_t bytes) {
    const auto after = by_address.upper_bound(begin);
    if (after == by_address.begin()) return by_address.end();
    const auto before = std::prev(after);
    return begin + bytes <= before->first + before->second.bytes ? before : by_address.end();
  }
};

Ranges& ranges() {
  static auto* const instance = new Ranges;
  return *instance;
}

uintptr_t number_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

void add_range(void* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_address[number_of(memory)] = {bytes, 0, kNobodys, kNobodys, false};
}

void remove_range(void* memory) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_address.erase(number_of(memory));
}

void let_reach(void* memory, int device) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_address.at(number_of(memory)).devices |= 1u << device;
}

void let_all_reach(void* memory) {
  for (int device = 0; device < machine().devices; ++device) let_reach(memory, device);
}

void let_reach_while_lent(void* memory, int device, int fd) {
  let_reach(memory, device);
  const std::lock_guard lock(ranges().mutex);
  ranges().by_address.at(number_of(memory)).lent = fd;
}

void mark_as_peers(void* memory) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_address.at(number_of(memory)).of_peer = true;
}

bool is_peers(const void* memory) {
  const std::lock_guard lock(ranges().mutex);
  const auto range = ranges().around(number_of(memory), 1);
  return range != ranges().by_address.end() && range->second.of_peer;
}

void give_to(int device, void* memory) {
  const std::lock_guard lock(ranges().mutex);
  Range& range = ranges().by_address.at(number_of(memory));
  range.owner = device;
  range.devices = ranges().peers.at(device) | 1u << device;
}

bool let_reach_peer(int device, int other) {
  const std::lock_guard lock(ranges().mutex);
  const unsigned bit = 1u << device;
  if ((ranges().peers.at(other) & bit) != 0) return false;
  ranges().peers.at(other) |= bit;
  for (auto& [begin, range] : ranges().by_address) range.devices |= range.owner == other ? bit : 0;
  return true;
}

bool is_device_memory(const void* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  const auto range = ranges().around(number_of(memory), bytes);
  return range != ranges().by_address.end() && range->second.devices != 0;
}

namespace {

bool is_there(const Range& range) { return range.lent == kNobodys || others_lock(range.lent, kDeviceBytes, 1); }

thread_local int device_of_kernel = 0;
thread_local std::vector<std::pair<uintptr_t, uintptr_t>> found;  // begin and end of what this thread reaches
std::array<std::atomic<bool>, 8> lost{};

}  // namespace

void enter_kernel(int device) {
  device_of_kernel = device;
  found.clear();
}

void touch(const void* memory, size_t bytes) {
  const uintptr_t begin = number_of(memory);
  for (const auto& [first, last] : found) {
    if (begin >= first && begin + bytes <= last) return;
  }
  const std::lock_guard lock(ranges().mutex);
  const auto range = ranges().around(begin, bytes);
  const bool reached = range != ranges().by_address.end() && (range->second.devices >> device_of_kernel & 1u) != 0;
  if (reached && is_there(range->second)) {
    found.emplace_back(range->first, range->first + range->second.bytes);
    return;
  }
  if (lost.at(device_of_kernel).exchange(true)) return;
  std::fprintf(stderr, "stand-in: a kernel on device %d has touched %p, which that device does not reach\n",
               device_of_kernel, memory);
}

bool is_lost(int device) { return lost.at(device); }

namespace {

struct Region {
  char* on_device;
  size_t bytes;
  bool allocated;
};

struct Regions {
  std::mutex mutex;  // guards by_host
  std::map<char*, Region> by_host;

  // The one that [memory, memory + bytes) begins in or reaches into.
  std::map<char*, Region>::iterator meeting(char* memory, size_t bytes) {
    auto after = by_host.lower_bound(memory + bytes);
    if (after == by_host.begin()) return by_host.end();
    const auto before = std::prev(after);
    return before->first + before->second.bytes > memory ? before : by_host.end();
  }
};

Regions& regions() {
  static auto* const instance = new Regions;
  return *instance;
}

// The same pages a second time; private ones cannot be had twice.
char* second_address(char* memory, size_t bytes) {
  void* const at = mremap(memory, 0, bytes, MREMAP_MAYMOVE);
  return at == MAP_FAILED ? memory : static_cast<char*>(at);
}

void add(char* memory, size_t bytes, bool allocated) {
  const Region region = {second_address(memory, bytes), bytes, allocated};
  add_range(region.on_device, bytes);
  let_all_reach(region.on_device);
  regions().by_host[memory] = region;
}

void remove(std::map<char*, Region>::iterator found) {
  const auto [memory, region] = *found;
  remove_range(region.on_device);
  if (region.on_device != memory) munmap(region.on_device, region.bytes);
  if (region.allocated) munmap(memory, region.bytes);
  regions().by_host.erase(found);
}

void wait_for_all_devices() {
  for (int device = 0; device < machine().devices; ++device) drain_device(device);
}

}  // namespace

void* allocate_host(size_t bytes) {
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  void* const at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw Refusal(cudaErrorMemoryAllocation, "mmap");
  const std::lock_guard lock(regions().mutex);
  add(static_cast<char*>(at), whole, true);
  return at;
}

void free_host(void* memory) {
  wait_for_all_devices();
  const std::lock_guard lock(regions().mutex);
  const auto found = regions().by_host.find(static_cast<char*>(memory));
  if (found == regions().by_host.end() || !found->second.allocated) {
    throw Refusal(cudaErrorInvalidValue, "not the first byte of pinned memory");
  }
  remove(found);
}

void register_host(void* memory, size_t bytes) {
  char* const at = static_cast<char*>(memory);
  const bool pages = reinterpret_cast<size_t>(memory) % kPage == 0 && bytes % kPage == 0 && bytes > 0;
  if (!pages || msync(memory, bytes, MS_ASYNC) != 0) throw Refusal(cudaErrorInvalidValue, "not whole mapped pages");
  const std::lock_guard lock(regions().mutex);
  if (regions().meeting(at, bytes) != regions().by_host.end()) {
    throw Refusal(cudaErrorHostMemoryAlreadyRegistered, "registered already");
  }
  add(at, bytes, false);
}

void unregister_host(void* memory) {
  wait_for_all_devices();
  const std::lock_guard lock(regions().mutex);
  const auto found = regions().by_host.find(static_cast<char*>(memory));
  if (found == regions().by_host.end() || found->second.allocated) {
    throw Refusal(cudaErrorHostMemoryNotRegistered, "not the first byte of registered memory");
  }
  remove(found);
}

void* device_address_of(void* memory) {
  char* const at = static_cast<char*>(memory);
  const std::lock_guard lock(regions().mutex);
  const auto found = regions().meeting(at, 1);
  if (found == regions().by_host.end()) throw Refusal(cudaErrorInvalidValue, "not memory that devices map");
  return found->second.on_device + (at - found->first);
}

void check_within_one(const void* memory, size_t bytes) {
  const char* const end = static_cast<const char*>(memory) + bytes;
  const char* last = end;
  {
    const std::lock_guard lock(ranges().mutex);
    const auto range = ranges().around(number_of(memory), 1);
    if (range != ranges().by_address.end()) last = reinterpret_cast<const char*>(range->first + range->second.bytes);
  }
  {
    char* const begin = static_cast<char*>(const_cast<void*>(memory));
    const std::lock_guard lock(regions().mutex);
    const auto region = regions().meeting(begin, 1);
    if (region != regions().by_host.end()) last = region->first + region->second.bytes;
  }
  if (end > last) throw Refusal(cudaErrorInvalidValue, "it begins in one allocation and reaches beyond it");
}

size_t pinned_bytes() {
  const std::lock_guard lock(regions().mutex);
  size_t bytes = 0;
  for (const auto& [memory, region] : regions().by_host) bytes += region.allocated ? region.bytes : 0;
  return bytes;
}

size_t held_parts() {
  const std::scoped_lock lock(memory_of_process().mutex, regions().mutex);
  return memory_of_process().own.size() + memory_of_process().imports.size() + regions().by_host.size();
}

}  // namespace stand_in
