// A device as ringdp uses it: its functions, pinned host memory, and one group's streams there.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
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

// What ringdp needs of a device beyond torch's interface for any device: pinned memory, and the order of streams.
//
// Any thread may call; the device is the current one of the calling thread. Streams are native handles
// (VirtualGuardImpl::getStreamNativeHandle). Errors are ringdp::Error. Nothing here waits for the device but release().
class DeviceCore {
 public:
  virtual ~DeviceCore() = default;

  // Host memory that the device copies from and to by itself, and whose words it can wait for.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // In the order of a stream: one of both is such host memory; the function runs on a thread of the device's and must
  // not wait; the stream goes on once the word, in such host memory, is 1 or above.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void call(void* stream, void (*function)(void*), void* argument) = 0;
  virtual void await(void* stream, const uint32_t* word) = 0;

  virtual bool is_capturing(void* stream) = 0;  // records a graph instead of running

  // With which ranks share its memory and run collectives on it.
  virtual const gpu::Functions& functions() const = 0;
};

// Null: tensors of such a device are refused.
DeviceCore* core_of(c10::DeviceType type);

// Unused memory that is kept for later calls; pinning costs more than copying.
constexpr size_t kKeptPinned = size_t{512} << 20;  // bytes

// Tensors in pinned host memory, which is used again when they are gone.
//
// Blocks are powers of two. Thread-safe; a tensor may die on any thread, also after the cache.
class PinnedCache {
 public:
  explicit PinnedCache(DeviceCore& core);

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);  // contiguous
  void trim();                                                    // to kKeptPinned; may wait for the device

  struct Blocks;

 private:
  const std::shared_ptr<Blocks> blocks_;
};

// One group's way over one device: streams of its own, pinned memory, and what is still under way on them.
//
// Inputs leave on one stream, which waits for callers' streams only, so a collective begins whatever others wait for.
// Results come on another, which waits for the host; a receive's on one per source, so it delays no other call.
// Streams are torch's, of the device's pool, which may give the same one twice when a process has many groups.
class StreamPool {
 public:
  StreamPool(c10::Device device, DeviceCore& core);
  ~StreamPool();  // at most about a second; pinned memory that the device then still uses is never freed

  c10::Device device() const { return device_; }
  DeviceCore& core() const { return core_; }
  c10::Stream callers_stream() const { return impl_.getStream(device_); }
  void* native(const c10::Stream& stream) const { return impl_.getStreamNativeHandle(stream); }
  // Whether the caller's stream records a graph. Comes before anything else that a call does with the device: to ask
  // for events, or to take memory, ends a capture.
  bool is_capturing() const { return core_.is_capturing(native(callers_stream())); }
  [[noreturn]] void refuse_capture(const std::string& why) const;
  // Of a tensor used on `stream`: not given to others before the stream has come by.
  void record(const at::Tensor& tensor, const c10::Stream& stream) const;

  const c10::Stream& inputs() const { return inputs_; }
  const c10::Stream& results() const { return results_; }
  c10::Stream results_from(int source);

  at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype);
  // Pinned tensors that the device uses until `passed`.
  void hold(std::shared_ptr<c10::Event> passed, std::vector<at::Tensor> pinned);

 private:
  void let_go();  // of what has passed

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
  std::shared_ptr<StreamPool> of(c10::Device device);  // null when devices of its type are not served

 private:
  std::mutex mutex_;  // guards pools_
  std::vector<std::shared_ptr<StreamPool>> pools_;
};

}  // namespace ringdp::backend
