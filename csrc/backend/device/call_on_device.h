// One call's way over a device, as its Work sees it: staged through host memory (device_call.h), or run by the device
// itself (native_call.h). No host thread waits for it.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "backend/device/lane.h"
#include "comm/pending.h"

namespace ringdp::backend {

class CallOnDevice {
 public:
  // `stream`: the one on which results come.
  CallOnDevice(std::shared_ptr<Lane> lane, const c10::Stream& stream)
      : lane_(std::move(lane)), stream_(stream), done_(std::make_shared<c10::Event>(lane_->device().type())) {}
  virtual ~CallOnDevice() = default;

  // For the collective of the host: whether it may begin; empty: at once.
  virtual comm::Ready ready() const = 0;
  // By the caller, once the collective is queued on the host: puts what is left on streams, then `after`, all of which is
  // over when done() is. `what`: the collective, for messages.
  virtual void enqueue(const std::function<void()>& after, const std::string& what) = 0;
  // Driver thread: the collective of the host has ended.
  virtual void collective_ended(bool failed) = 0;
  // Any thread: whether the device has given up, as far as is known; the group then has failed, or was left.
  virtual bool given_up() const { return false; }
  // Into a graph: it is done once it is recorded, and what its replays do is nothing to it.
  virtual bool is_captured() const { return false; }

  void block_callers_stream() const;  // InvalidArgument when the call was captured and the stream is no more
  bool done() const { return is_captured() || done_->query(); }
  c10::Device device() const { return lane_->device(); }
  const c10::Stream& stream() const { return stream_; }  // after which it is done

 protected:
  const std::shared_ptr<Lane> lane_;
  const c10::Stream stream_;
  const std::shared_ptr<c10::Event> done_;
};

// Whether what a failure leaves in such a tensor is NaN.
bool holds_numbers_with_nan(const at::Tensor& tensor);

}  // namespace ringdp::backend
