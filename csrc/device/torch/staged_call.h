// A running call on a device, and the kind that is staged through pinned host memory.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/pending.h"
#include "device/torch/device_collectives.h"
#include "device/torch/stream_pool.h"

namespace ringdp::backend {

// A running call, as its Work sees it: staged through host memory (StagedCall), or run by the device itself
// (queued_call.h). No host thread waits for it.
class RunningCall {
 public:
  // `stream`: of the results.
  RunningCall(std::shared_ptr<StreamPool> pool, const c10::Stream& stream, bool captured = false)
      : pool_(std::move(pool)), stream_(stream), done_(pool_->event(captured)) {}
  virtual ~RunningCall() = default;

  // Whether the collective may start on the host; empty: at once.
  virtual comm::Ready ready() const = 0;
  // Called after the collective has been queued on the host: enqueues the rest of the call on streams, then `after`;
  // done() covers all of it. `what`: the collective, for messages.
  virtual void enqueue(const std::function<void()>& after, const std::string& what) = 0;
  // Called by the driver thread when the collective has ended on the host.
  virtual void collective_ended(bool failed) = 0;
  // Whether the device is known to have aborted; then the group has failed or was destroyed. Any thread.
  virtual bool aborted() const { return false; }
  // Captured into a graph: done once it is recorded, whatever its replays do.
  virtual bool is_captured() const { return false; }

  void block_callers_stream() const;  // InvalidArgument when the call was captured and the capture has ended
  bool done() const;
  c10::Device device() const { return pool_->device(); }
  const c10::Stream& stream() const { return stream_; }  // done when this stream has run it

 protected:
  const std::shared_ptr<StreamPool> pool_;
  const c10::Stream stream_;
  const std::shared_ptr<c10::Event> done_;
};

// Whether poisoned elements of such a tensor are NaN.
bool holds_numbers_with_nan(const at::Tensor& tensor);

// A call staged through pinned memory: copies inputs to the host, runs the collective there, copies results back.
//
//   caller's stream   ... | event
//   inputs' stream          event > copy to host > the collective may begin
//   the driver                                      runs it                  > word = 1
//   results' stream         event > wait for the word                        > copy to device > event
//
// However the collective ends, the driver writes the word, for which it needs neither the GIL nor the device: so no
// stream waits longer than the collective's own deadline. After a failure floating-point results are NaN.
class StagedCall final : public RunningCall {
 public:
  using Copy = DeviceTensors::Copy;
  // `stream`: of the results.
  StagedCall(std::shared_ptr<StreamPool> pool, const c10::Stream& stream);

  // Called in this order.
  void bring(const std::vector<Copy>& inputs, std::vector<Copy> results);
  comm::Ready ready() const override;  // whether the inputs are on the host; empty when there are none
  void enqueue(const std::function<void()>& after, const std::string& what) override;  // the copies back
  void collective_ended(bool failed) override;

 private:
  const at::Tensor word_;
  std::shared_ptr<std::atomic<bool>> here_;  // whether the inputs are on the host; null when there are none
  std::vector<Copy> results_;
};

}  // namespace ringdp::backend
