// A call under way on a device, and the kind that is staged through pinned host memory.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/pending.h"
#include "device/torch/stream_pool.h"

namespace ringdp::backend {

// One call's way over a device, as its Work sees it: staged through host memory (StagedCall), or run by the device
// itself (queued_call.h). No host thread waits for it.
class RunningCall {
 public:
  // `stream`: the one on which results come.
  RunningCall(std::shared_ptr<StreamPool> pool, const c10::Stream& stream)
      : pool_(std::move(pool)), stream_(stream), done_(std::make_shared<c10::Event>(pool_->device().type())) {}
  virtual ~RunningCall() = default;

  // For the collective of the host: whether it may begin; empty: at once.
  virtual comm::Ready ready() const = 0;
  // By the caller, once the collective is queued on the host: puts what is left on streams, then `after`, all of which
  // is over when done() is. `what`: the collective, for messages.
  virtual void enqueue(const std::function<void()>& after, const std::string& what) = 0;
  // Driver thread: the collective of the host has ended.
  virtual void collective_ended(bool failed) = 0;
  // Any thread: whether the device has aborted, as far as is known; the group then has failed, or was left.
  virtual bool aborted() const { return false; }
  // Into a graph: it is done once it is recorded, and what its replays do is nothing to it.
  virtual bool is_captured() const { return false; }

  void block_callers_stream() const;  // InvalidArgument when the call was captured and the stream is no more
  bool done() const { return is_captured() || done_->query(); }
  c10::Device device() const { return pool_->device(); }
  const c10::Stream& stream() const { return stream_; }  // after which it is done

 protected:
  const std::shared_ptr<StreamPool> pool_;
  const c10::Stream stream_;
  const std::shared_ptr<c10::Event> done_;
};

// Whether what a failure leaves in such a tensor is NaN.
bool holds_numbers_with_nan(const at::Tensor& tensor);

// One call's way over a device: to pinned memory, through a collective of the host, and back; no host thread waits.
//
//   caller's stream   ... | event
//   inputs' stream          event > copy to host > the collective may begin
//   the driver                                      runs it                  > word = 1
//   results' stream         event > wait for the word                        > copy to device > event
//
// The word is written however the collective ends, by the driver, which needs neither the GIL nor the device: so no
// stream waits longer than the collective's own deadline. After a failure floating-point results are NaN.
class StagedCall final : public RunningCall {
 public:
  using Copy = DeviceTensors::Copy;
  // `stream`: the one on which results come.
  StagedCall(std::shared_ptr<StreamPool> pool, const c10::Stream& stream);

  // By the caller, in this order.
  void bring(const std::vector<Copy>& inputs, std::vector<Copy> results);
  comm::Ready ready() const override;  // whether the inputs have come; empty when it needs none
  void enqueue(const std::function<void()>& after, const std::string& what) override;  // the way back
  void collective_ended(bool failed) override;

 private:
  const at::Tensor word_;
  std::shared_ptr<std::atomic<bool>> here_;  // the inputs; null: there are none
  std::vector<Copy> results_;
};

}  // namespace ringdp::backend
