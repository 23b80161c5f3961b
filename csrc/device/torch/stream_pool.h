// What one group uses of a device: its streams, and pinned host memory.
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

#include "device/torch/device_core.h"
#include "device/torch/stream_lease.h"

namespace ringdp::backend {

// How much unused memory is kept for later calls; pinning costs more than copying.
constexpr size_t kKeptPinned = size_t{512} << 20;  // bytes
// How many events a group makes at first: each call keeps one until the device has run it, and uses a few for a moment.
constexpr size_t kStockedEvents = 64;

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

// Events, which are used again when they are dropped: a device's driver may keep whoever makes or destroys one waiting
// for another thread's copy. What waits for an earlier record of one that is recorded again still waits for that.
//
// Thread-safe; an event may be dropped on any thread, also after the cache.
class EventCache {
 public:
  explicit EventCache(c10::Device device);
  std::shared_ptr<c10::Event> take();
  // Makes events until so many calls in flight need no more. The thread's current device must be the stream's.
  void stock(const c10::Stream& stream);

 private:
  struct Unused;
  const std::shared_ptr<Unused> unused_;
};

// One group's resources on one device: its streams, its pinned memory, and the copies in flight.
//
// The input stream waits only for callers' streams, so a collective can start whatever other collectives wait for. The
// result stream waits for the host; receives have one per source, so that they delay no other call. Each is made when
// it is first needed: the fewer a device has, the fewer share a hardware queue.
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

  const c10::Stream& inputs();
  const c10::Stream& results();
  const c10::Stream& results_from(int source);
  // Whether the device has come by. The thread's current device must be this one.
  bool has_passed(const c10::Event& event) const;

  // To be recorded before anything else. One that joins a capture is made for it: such events are used once.
  std::shared_ptr<c10::Event> event(bool captured = false);
  void stock_events(const c10::Stream& stream) { events_.stock(stream); }  // see EventCache; of this device
  at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype);
  // Keeps pinned tensors that the device uses until `passed`.
  void hold(std::shared_ptr<c10::Event> passed, std::vector<at::Tensor> pinned);

 private:
  const c10::Stream& lent(std::unique_ptr<StreamLease>& lease);
  void release_passed();

  const c10::Device device_;
  DeviceCore& core_;
  const c10::impl::VirtualGuardImpl impl_;

  struct Held {
    std::shared_ptr<c10::Event> passed;
    std::vector<at::Tensor> pinned;
  };
  std::mutex mutex_;                               // guards the next three
  std::unique_ptr<StreamLease> inputs_, results_;  // null until needed
  std::map<int, std::unique_ptr<StreamLease>> by_source_;
  std::list<Held> held_;
  PinnedCache cache_;
  EventCache events_;
};

// Why streams of this process's devices wait for one another, or "". The first StreamPool warns of it.
std::string caveat_of_queues();

// A backend's pools. Thread-safe.
class StreamPools {
 public:
  std::shared_ptr<StreamPool> of(c10::Device device);  // null when its type is not supported

 private:
  std::mutex mutex_;  // guards pools_
  std::vector<std::shared_ptr<StreamPool>> pools_;
};

}  // namespace ringdp::backend
