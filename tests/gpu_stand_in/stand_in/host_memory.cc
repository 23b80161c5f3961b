#include "stand_in/host_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <string>

#include "stand_in/machine.h"
#include "stand_in/memory.h"
#include "stand_in/refusal.h"
#include "stand_in/stream.h"

namespace stand_in {
namespace {

constexpr size_t kPage = 4096;

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
  add_reachable(region.on_device, bytes);
  regions().by_host[memory] = region;
}

void remove(std::map<char*, Region>::iterator found) {
  const auto [memory, region] = *found;
  remove_reachable(region.on_device);
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

size_t pinned_bytes() {
  const std::lock_guard lock(regions().mutex);
  size_t bytes = 0;
  for (const auto& [memory, region] : regions().by_host) bytes += region.allocated ? region.bytes : 0;
  return bytes;
}

}  // namespace stand_in
