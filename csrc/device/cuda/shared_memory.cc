#include "device/cuda/shared_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>
#include <vector>

#include "device/cuda/driver.h"

namespace ringdp::gpu {
namespace {

bool is_within(const Allocation& allocation, const void* memory) {
  const auto* const at = static_cast<const char*>(memory);
  return at >= allocation.base && at < allocation.base + allocation.bytes;
}

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kBusily{2}, kNap{1};  // copies whose time is measured end within the first

// cudaErrorNotReady: they are not done in time.
cudaError_t wait_for(cudaStream_t stream) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t result = cudaStreamQuery(stream);
    if (result != cudaErrorNotReady) return result;
    cudaGetLastError();  // clears it, as it is no error
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > kPatience) return result;
    if (waited > kBusily) std::this_thread::sleep_for(kNap);
  }
}

// The streams of copies that were late.
class LateCopies {
 public:
  void add(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back({device, stream});
  }
  // Whether there are any; asks the driver only then.
  bool any() {
    const std::lock_guard lock(mutex_);
    const auto has_ended = [](const std::pair<int, cudaStream_t>& late) {
      const OnDevice here(late.first);
      const bool over = cudaStreamQuery(late.second) != cudaErrorNotReady;
      cudaGetLastError();
      if (over) cudaStreamDestroy(late.second);
      return over;
    };
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(), has_ended), streams_.end());
    return !streams_.empty();
  }

 private:
  std::mutex mutex_;  // guards streams_
  std::vector<std::pair<int, cudaStream_t>> streams_;
};

LateCopies& late_copies() {
  static auto* const instance = new LateCopies;
  return *instance;
}

// One of its own: the default stream would wait for kernels that may be waiting for this rank.
cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void fill_with_zeros(const Allocation& allocation) {
  const OnDevice here(allocation.device);
  const cudaStream_t stream = new_stream();
  cudaError_t result = cudaMemsetAsync(allocation.base, 0, allocation.bytes, stream);
  if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check("cudaMemsetAsync(" + std::to_string(allocation.bytes) + " bytes) and cudaStreamSynchronize", result);
}

Allocation allocated(int device, size_t bytes, int sharing) {
  if (sharing == RD_GPU_SHARE_AUTO) {
    const Allocation legacy = allocate_legacy(device, bytes);
    if (legacy.base != nullptr) return legacy;
  }
  return allocate_by_fd(device, bytes);
}

void give_back(const Allocation& allocation) { allocation.by_fd ? free_by_fd(allocation) : free_legacy(allocation); }

// A descriptor has no identity across processes, so the exporter draws a random key.
std::string drawn_key() {
  rd_gpu_handle handle;
  if (getrandom(handle.key, sizeof handle.key, 0) != sizeof handle.key) refuse("rd_gpu_export: no random numbers");
  return std::string(handle.key, handle.key + sizeof handle.key);
}

std::string key_of(const Allocation& allocation) {
  if (allocation.by_fd) return drawn_key();
  const LegacyKey key = export_legacy(allocation);
  return std::string(key.bytes, key.bytes + sizeof key.bytes);
}

Allocation opened(int device, const rd_gpu_handle& handle, int fd) {
  if (handle.needs_fd) return open_fd(device, handle.bytes, fd);
  LegacyKey key;
  std::memcpy(key.bytes, handle.key, sizeof key.bytes);
  return open_legacy(device, handle.bytes, key);
}

}  // namespace

void copy_now(int device, void* to, const void* from, size_t bytes) {
  const OnDevice here(device);
  const cudaStream_t stream = new_stream();
  const std::string what = "cudaMemcpyAsync(" + std::to_string(bytes) + " bytes)";
  cudaError_t result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  if (result == cudaSuccess) result = wait_for(stream);
  if (result == cudaErrorNotReady) {
    late_copies().add(device, stream);
    throw Failure(RD_GPU_LATE, what + " has not ended after " + std::to_string(kPatience.count()) + " seconds");
  }
  cudaStreamDestroy(stream);
  check(what + " and cudaStreamQuery", result);
}

bool has_late_copies() { return late_copies().any(); }

SharedMemory::Own* SharedMemory::own_around(const void* memory) {
  const auto found = std::find_if(own_.begin(), own_.end(),
                                  [&](const auto& entry) { return is_within(entry.second.allocation, memory); });
  return found == own_.end() ? nullptr : &found->second;
}

auto SharedMemory::mapping_around(const void* memory) -> std::map<MappingKey, Mapping>::iterator {
  return std::find_if(mappings_.begin(), mappings_.end(),
                      [&](const auto& entry) { return is_within(entry.second.allocation, memory); });
}

void* SharedMemory::allocate(int device, size_t bytes, int sharing) {
  if (sharing != RD_GPU_SHARE_AUTO && sharing != RD_GPU_SHARE_FD) {
    refuse("rd_gpu_alloc: sharing " + std::to_string(sharing) + "; it is RD_GPU_SHARE_AUTO or RD_GPU_SHARE_FD");
  }
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() - kBlockBytes) {
    refuse("rd_gpu_alloc: " + std::to_string(bytes) + " bytes; ask for at least 1, and no more than a device has");
  }
  const size_t whole = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const Allocation allocation = allocated(device, whole, sharing);
  try {
    fill_with_zeros(allocation);
    const std::lock_guard lock(mutex_);
    own_[allocation.base].allocation = allocation;
  } catch (...) {
    try {
      give_back(allocation);
    } catch (...) {  // what failed first says more
    }
    throw;
  }
  return allocation.base;
}

void SharedMemory::free(void* memory) {
  std::unique_lock lock(mutex_);
  const auto found = own_.find(static_cast<char*>(memory));
  if (found == own_.end()) refuse("rd_gpu_free: not the start of memory from rd_gpu_alloc, or freed already");
  if (found->second.imports != 0) {
    refuse("rd_gpu_free: this process still has it imported " + std::to_string(found->second.imports) +
           " times; rd_gpu_unimport comes first");
  }
  auto taken = own_.extract(found);
  lock.unlock();
  if (has_late_copies()) return;
  try {
    give_back(taken.mapped().allocation);
  } catch (...) {  // to be freed again
    lock.lock();
    own_.insert(std::move(taken));
    throw;
  }
}

rd_gpu_handle SharedMemory::exported(void* memory, int* fd) {
  const std::lock_guard lock(mutex_);
  Own* const own = own_around(memory);
  if (own == nullptr) {
    refuse(
        "rd_gpu_export: this memory is not of rd_gpu_alloc, and what others allocate cannot always be shared; copy it "
        "to memory of rd_gpu_alloc");
  }
  const Allocation& allocation = own->allocation;
  if (own->key.empty()) own->key = key_of(allocation);
  rd_gpu_handle handle{};
  std::memcpy(handle.key, own->key.data(), sizeof handle.key);
  handle.bytes = allocation.bytes;
  handle.offset = static_cast<uint64_t>(static_cast<char*>(memory) - allocation.base);
  handle.needs_fd = allocation.by_fd;
  *fd = allocation.by_fd ? export_fd(allocation) : -1;
  return handle;
}

void* SharedMemory::import(int device, const rd_gpu_handle& handle, int fd) {
  if (handle.offset >= handle.bytes) {
    refuse("rd_gpu_import: offset " + std::to_string(handle.offset) + " in an allocation of " +
           std::to_string(handle.bytes) + " bytes; the handle did not arrive as it was sent");
  }
  if (handle.needs_fd && fd < 0) refuse("rd_gpu_import: this handle needs the descriptor that came with it");
  const std::string key(handle.key, handle.key + sizeof handle.key);
  std::unique_lock lock(mutex_);
  for (auto& [base, own] : own_) {
    if (own.key != key) continue;
    ++own.imports;  // so nobody frees it meanwhile
    lock.unlock();
    try {
      let_access(own.allocation, device);
    } catch (...) {
      lock.lock();
      --own.imports;
      throw;
    }
    return base + handle.offset;
  }
  const MappingKey place = {device, key};
  changed_.wait(lock, [&] { return mappings_.count(place) == 0 || !mappings_[place].changes; });
  Mapping& mapping = mappings_[place];
  if (mapping.imports == 0) {
    mapping.changes = true;
    lock.unlock();
    Allocation allocation;
    std::exception_ptr failure;
    try {
      allocation = opened(device, handle, fd);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    mapping.allocation = allocation;
    mapping.changes = false;
    if (failure) mappings_.erase(place);
    changed_.notify_all();
    if (failure) std::rethrow_exception(failure);
  }
  ++mapping.imports;
  return mapping.allocation.base + handle.offset;
}

void SharedMemory::unimport(void* memory) {
  std::unique_lock lock(mutex_);
  if (Own* const own = own_around(memory); own != nullptr && own->imports > 0) {
    --own->imports;
    return;
  }
  const auto found = mapping_around(memory);
  if (found == mappings_.end()) refuse("rd_gpu_unimport: not memory from rd_gpu_import, or unmapped already");
  if (--found->second.imports > 0) return;
  const Allocation allocation = std::exchange(found->second.allocation, {});
  found->second.changes = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    if (!has_late_copies()) allocation.by_fd ? free_by_fd(allocation) : close_legacy(allocation);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  mappings_.erase(found);
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ringdp::gpu
