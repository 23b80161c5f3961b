#include "device/torch/stream_pool.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "backend/errors.h"
#include "base/deadline.h"
#include "base/log.h"
#include "device/runtime/library.h"

namespace ringdp::backend {
namespace {

class CudaCore final : public DeviceCore {
 public:
  explicit CudaCore(const gpu::Functions& functions) : functions_(functions) {}

  void* allocate(size_t bytes) override {
    void *host = nullptr, *mapped = nullptr;
    check(functions_.host_alloc(bytes, &host, &mapped));
    return host;
  }
  void release(void* memory) noexcept override { functions_.host_free(memory); }
  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    check(functions_.copy(to, from, bytes, stream));
  }
  void call(void* stream, void (*function)(void*), void* argument) override {
    check(functions_.call(stream, function, argument));
  }
  void await(void* stream, const uint32_t* word) override { check(functions_.await(word, 1, stream)); }
  bool is_capturing(void* stream) override {
    int capturing = 0;
    check(functions_.is_capturing(stream, &capturing));
    return capturing != 0;
  }

  const gpu::Functions& functions() const override { return functions_; }

 private:
  void check(int result) const { gpu::require(functions_, result); }
  const gpu::Functions& functions_;
};

DeviceCore* find_cuda() {
  const gpu::Library& library = gpu::library();
  int count = 0;
  if (!library.opened || library.functions.count(&count) != 0 || count == 0) return nullptr;
  return new CudaCore(library.functions);
}

struct Served {
  std::mutex mutex;  // guards types
  std::set<c10::DeviceType> types;
};

Served& served() {
  static Served* const instance = new Served;
  return *instance;
}

bool is_announced(c10::DeviceType type) {
  const std::lock_guard lock(served().mutex);
  return served().types.count(type) != 0;
}

constexpr size_t kSmallestBlock = 4096;  // bytes: a page

size_t block_of(size_t bytes) {
  size_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  return block;
}

}  // namespace

QuietDeviceGuard::QuietDeviceGuard(c10::Device device) noexcept {
  try {
    guard_.reset_device(device);
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "ringdp", std::string("a device cannot be made current: ") + error.what());
  }
}

StreamPool::StreamPool(c10::Device device, DeviceCore& core)
    : device_(device),
      core_(core),
      impl_(device.type()),
      inputs_(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      results_(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      cache_(device, core) {}

StreamPool::~StreamPool() {
  const QuietDeviceGuard here(device_);
  const Deadline patience = Deadline::after(std::chrono::seconds(1));
  try {
    for (release_passed(); !held_.empty() && !patience.passed(); release_passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {  // the device's context is broken, which is reported where it broke
    log_line(LogLevel::kDebug, "ringdp", std::string("pinned memory is kept: ") + error.what());
  }
  if (!held_.empty()) new std::list<Held>(std::move(held_));
}

// The default stream has no handle of its own, but that of the current device.
bool StreamPool::is_capturing() const {
  const c10::DeviceGuard here(device_);
  return core_.is_capturing(native(callers_stream()));
}

void StreamPool::refuse_capture(const std::string& why) const {
  refuse("the current stream of " + device_.str() + " is being captured: " + why);
}

void StreamPool::record(const at::Tensor& tensor, const c10::Stream& stream) const {
  impl_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::Stream StreamPool::results_from(int source) {
  const std::lock_guard lock(mutex_);
  const auto known = by_source_.find(source);
  if (known != by_source_.end()) return known->second;
  return by_source_.emplace(source, impl_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)).first->second;
}

at::Tensor StreamPool::pinned(at::IntArrayRef sizes, at::ScalarType dtype) {
  const c10::DeviceGuard device(device_);
  release_passed();
  return cache_.empty(sizes, dtype);
}

void StreamPool::hold(std::shared_ptr<c10::Event> passed, std::vector<at::Tensor> pinned) {
  const std::lock_guard lock(mutex_);
  held_.push_back({std::move(passed), std::move(pinned)});
}

void StreamPool::release_passed() {
  const std::lock_guard lock(mutex_);
  held_.remove_if([](const Held& held) { return held.passed->query(); });
  // Only when idle: freeing waits for the device, which may wait for the host to finish collectives.
  if (held_.empty()) cache_.trim();
}

std::shared_ptr<StreamPool> StreamPools::of(c10::Device device) {
  DeviceCore* const core = core_of(device.type());
  if (core == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& pool : pools_) {
    if (pool->device() == device) return pool;
  }
  pools_.push_back(std::make_shared<StreamPool>(device, *core));
  return pools_.back();
}

DeviceCore* cuda_core() {
  static DeviceCore* const instance = find_cuda();
  return instance;
}

bool is_served(c10::DeviceType type) { return core_of(type) != nullptr; }

DeviceCore* core_of(c10::DeviceType type) {
  if (type == c10::kCPU) return nullptr;
  return type == c10::kCUDA || is_announced(type) ? cuda_core() : nullptr;
}

void serve(c10::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  if (type == c10::kCPU || type == c10::kCUDA || is_announced(type)) {
    refuse("serve_device: " + name + " is served by ringdp itself, or already");
  }
  if (cuda_core() == nullptr) {
    refuse("serve_device: " + name + " needs a libringdp_gpu.so that has a device; RINGDP_GPU_LIBRARY names the file");
  }
  const std::lock_guard lock(served().mutex);
  served().types.insert(type);
}

struct PinnedCache::Blocks {
  Blocks(c10::Device on, DeviceCore& its_core) : device(on), core(its_core) {}
  ~Blocks() { free_down_to(0); }

  void* take(size_t block) {
    {
      const std::lock_guard lock(mutex);
      auto& fitting = unused[block];
      if (!fitting.empty()) {
        void* const memory = fitting.back();
        fitting.pop_back();
        unused_bytes -= block;
        return memory;
      }
    }
    return core.allocate(block);
  }

  void give_back(void* memory, size_t block) {
    const std::lock_guard lock(mutex);
    unused[block].push_back(memory);
    unused_bytes += block;
  }

  // Largest first: few calls need them, and they are most of the memory.
  void free_down_to(size_t bytes) {
    const QuietDeviceGuard here(device);
    const std::lock_guard lock(mutex);
    for (auto size = unused.rbegin(); size != unused.rend(); ++size) {
      while (unused_bytes > bytes && !size->second.empty()) {
        core.release(size->second.back());
        size->second.pop_back();
        unused_bytes -= size->first;
      }
    }
  }

  const c10::Device device;
  DeviceCore& core;
  std::mutex mutex;                             // guards the next two
  std::map<size_t, std::vector<void*>> unused;  // by block size
  size_t unused_bytes = 0;
};

PinnedCache::PinnedCache(c10::Device device, DeviceCore& core) : blocks_(std::make_shared<Blocks>(device, core)) {}

at::Tensor PinnedCache::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t block = block_of(c10::multiply_integers(sizes) * c10::elementSize(dtype));
  void* const memory = blocks_->take(block);
  const auto give_back = [blocks = blocks_, block](void* used) { blocks->give_back(used, block); };
  return at::from_blob(memory, sizes, give_back, at::TensorOptions().dtype(dtype));
}

void PinnedCache::trim() { blocks_->free_down_to(kKeptPinned); }

}  // namespace ringdp::backend
