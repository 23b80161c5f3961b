// One group's way over one device: streams of its own, pinned memory, and what is still under way on them.
//
// Inputs leave on one stream, which waits for callers' streams only, so a collective begins whatever others wait for.
// Results come on another, which waits for the host; a receive's on one per source, so it delays nobody else.
// Streams are torch's, of the device's pool, which may give the same one twice when a process has many groups.
#pragma once
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/device/device_core.h"
#include "backend/device/pinned.h"

namespace ringdp::backend {

class Lane {
 public:
  Lane(c10::Device device, DeviceCore& core);
  ~Lane();  // at most about a second; pinned memory that the device then still uses is never freed

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

// A backend's lanes. Thread-safe.
class Lanes {
 public:
  std::shared_ptr<Lane> of(c10::Device device);  // null when devices of its type are not served

 private:
  std::mutex mutex_;  // guards lanes_
  std::vector<std::shared_ptr<Lane>> lanes_;
};

}  // namespace ringdp::backend
