// A device as ringdp uses it: its functions, pinned host memory, and one group's streams there.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/runtime/library.h"
#include "device/torch/device_collectives.h"

namespace ringdp::backend {

// What ringdp needs from a device beyond torch's generic interface: pinned memory and stream operations.
//
// Any thread may call; the device is the calling thread's current one. Streams are native handles
// (VirtualGuardImpl::getStreamNativeHandle). Errors are ringdp::Error. Only release() may wait for the device.
class DeviceCore {
 public:
  virtual ~DeviceCore() = default;

  // Host memory that the device can copy from and to, and in which it can wait for a word.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // In the order of a stream. copy: one side is such host memory. call: the function runs on a thread of the driver and
  // must not wait. await: until the word, in such host memory, is at least 1.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void call(void* stream, void (*function)(void*), void* argument) = 0;
  virtual void await(void* stream, const uint32_t* word) = 0;

  virtual bool is_capturing(void* stream) = 0;  // into a graph

  // For sharing its memory and running collectives on it.
  virtual const gpu::Functions& functions() const = 0;
};

// Sets the thread's current device where any thread may come by, as in destructors: on a thread without one the runtime
// would make a context on the first device. Never throws: at process exit the runtime may be gone.
class QuietDeviceGuard {
 public:
  explicit QuietDeviceGuard(c10::Device device) noexcept;

 private:
  c10::OptionalDeviceGuard guard_;
};

// Null: tensors of such a device are refused.
DeviceCore* core_of(c10::DeviceType type);

// How much unused memory is kept for later calls; pinning costs more than copying.
constexpr size_t kKeptPinned = size_t{512} << 20;  // bytes

// Tensors in pinned host memory, which is reused when they are gone.
//
// Blocks are powers of two. Thread-safe; a tensor may be freed on any thread, also after the cache.
class PinnedCache {
 public:
  PinnedCache(c10::Device device, DeviceCore& core);

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);  // contiguous
  void trim();                                                    // to kKeptPinned; may wait for the device

  struct Blocks;

 private:
  const std::shared_ptr<Blocks> blocks_;
};

// One group's resources on one device: its streams, its pinned memory, and the copies in flight.
//
// The input stream waits only for callers' streams, so a collective can start whatever other collectives wait for. The
// result stream waits for the host; receives have one per source, so that they delay no other call. Streams come from
// torch's pool of the device, which may hand out the same one twice when a process has many groups.
class StreamPool {
 public:
  StreamPool(c10::Device device, DeviceCore& core);
  ~StreamPool();  // waits at most about a second; pinned memory that the device still uses then is never freed

  c10::Device device() const { return device_; }
  DeviceCore& core() const { return core_; }
  c10::Stream callers_stream() const { return impl_.getStream(device_); }
  void* native(const c10::Stream& stream) const { return impl_.getStreamNativeHandle(stream); }
  // Whether the caller's stream is being captured. Must be checked before any other use of the device: querying events
  // or allocating memory would invalidate a capture.
  bool is_capturing() const;
  [[noreturn]] void refuse_capture(const std::string& why) const;
  // Tells the allocator that `stream` uses the tensor, so that its memory is not reused too early.
  void record(const at::Tensor& tensor, const c10::Stream& stream) const;

  const c10::Stream& inputs() const { return inputs_; }
  const c10::Stream& results() const { return results_; }
  c10::Stream results_from(int source);

  at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype);
  // Keeps pinned tensors that the device uses until `passed`.
  void hold(std::shared_ptr<c10::Event> passed, std::vector<at::Tensor> pinned);

 private:
  void release_passed();

  const c10::Device device_;
  DeviceCore& core_;
  const c10::impl::VirtualGuardImpl impl_;
  const c10::Stream inputs_, results_;

  struct Held {
    std::shared_ptr<c10::Event> passed;
    std::vector<at::Tensor> pinned;
  };
  std::mutex mutex_;  // guards the next two
  std::map<int, c10::Stream> by_source_;
  std::list<Held> held_;
  PinnedCache cache_;
};

// A backend's pools. Thread-safe.
class StreamPools {
 public:
  std::shared_ptr<StreamPool> of(c10::Device device);  // null when its type is not supported

 private:
  std::mutex mutex_;  // guards pools_
  std::vector<std::shared_ptr<StreamPool>> pools_;
};

}  // namespace ringdp::backend
