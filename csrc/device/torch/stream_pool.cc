#include "device/torch/stream_pool.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/errors.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/settings.h"
#include "device/runtime/library.h"

namespace ringdp::backend {
namespace {

constexpr size_t kSmallestBlock = 4096;  // bytes: a page

size_t block_of(size_t bytes) {
  size_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  return block;
}

}  // namespace

std::string caveat_of_queues() {
  if (read_env("CUDA_DEVICE_MAX_CONNECTIONS") != "1") return "";
  return "CUDA_DEVICE_MAX_CONNECTIONS=1 lets all streams of a device share one hardware queue: computation waits for "
         "every collective that was called before it, and ranks that receive before they send, or call groups in "
         "different orders wait until the deadline; 8 or more keeps streams apart";
}

StreamPool::StreamPool(c10::Device device, DeviceCore& core)
    : device_(device), core_(core), impl_(device.type()), cache_(device, core), events_(device) {
  static std::once_flag told;
  const std::string caveat = caveat_of_queues();
  if (!caveat.empty()) std::call_once(told, [&] { log_line(LogLevel::kWarning, "", caveat); });
}

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

bool StreamPool::has_passed(const c10::Event& event) const {
  const BesideCaptures relaxed(core_);
  return event.query();
}

const c10::Stream& StreamPool::inputs() {
  const std::lock_guard lock(mutex_);
  return lent(inputs_);
}

const c10::Stream& StreamPool::results() {
  const std::lock_guard lock(mutex_);
  return lent(results_);
}

const c10::Stream& StreamPool::results_from(int source) {
  const std::lock_guard lock(mutex_);
  return lent(by_source_[source]);
}

// Under mutex_.
const c10::Stream& StreamPool::lent(std::unique_ptr<StreamLease>& lease) {
  if (!lease) lease = std::make_unique<StreamLease>(device_, core_);
  return lease->stream();
}

std::shared_ptr<c10::Event> StreamPool::event(bool captured) {
  return captured ? std::make_shared<c10::Event>(device_.type()) : events_.take();
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
  bool idle = false;
  {
    const std::lock_guard lock(mutex_);
    held_.remove_if([this](const Held& held) { return has_passed(*held.passed); });
    idle = held_.empty();
  }
  // Only when idle: freeing waits for the device, which may wait for the host to finish collectives.
  if (idle) cache_.trim();
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

  void free_down_to(size_t bytes) {
    const QuietDeviceGuard here(device);
    for (void* const memory : taken_down_to(bytes)) core.release(memory);  // without the lock, as it may wait
  }

  // Largest first: few calls need them, and they are most of the memory.
  std::vector<void*> taken_down_to(size_t bytes) {
    std::vector<void*> taken;
    const std::lock_guard lock(mutex);
    for (auto size = unused.rbegin(); size != unused.rend(); ++size) {
      while (unused_bytes > bytes && !size->second.empty()) {
        taken.push_back(size->second.back());
        size->second.pop_back();
        unused_bytes -= size->first;
      }
    }
    return taken;
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

struct EventCache::Unused {
  explicit Unused(c10::Device of) : device(of) {}
  ~Unused() {
    const QuietDeviceGuard here(device);
    events.clear();
  }

  const c10::Device device;
  std::mutex mutex;  // guards events
  std::vector<std::unique_ptr<c10::Event>> events;
};

EventCache::EventCache(c10::Device device) : unused_(std::make_shared<Unused>(device)) {}

// An event is made when it is recorded first.
void EventCache::stock(const c10::Stream& stream) {
  std::vector<std::shared_ptr<c10::Event>> made;
  while (made.size() < kStockedEvents) {
    made.push_back(take());
    made.back()->record(stream);
  }
}

std::shared_ptr<c10::Event> EventCache::take() {
  std::unique_ptr<c10::Event> event;
  {
    const std::lock_guard lock(unused_->mutex);
    if (!unused_->events.empty()) {
      event = std::move(unused_->events.back());
      unused_->events.pop_back();
    }
  }
  if (!event) event = std::make_unique<c10::Event>(unused_->device.type());
  return {event.release(), [unused = unused_](c10::Event* used) {
            const std::lock_guard lock(unused->mutex);
            unused->events.emplace_back(used);
          }};
}

}  // namespace ringdp::backend
