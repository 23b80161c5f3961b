// One call's way over a device: to pinned memory, through a collective of the host, and back; no host thread waits.
//
//   caller's stream   ... | event
//   inputs' stream          event > copy to host > the collective may begin
//   the driver                                      runs it                  > word = 1
//   results' stream         event > wait for the word                        > copy to device > event
//
// The word is written however the collective ends, by the driver, which needs neither the GIL nor the device: so no stream
// waits longer than the collective's own deadline. After a failure floating-point results are NaN.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "backend/device/lane.h"
#include "comm/pending.h"

namespace ringdp::backend {

class DeviceCall {
 public:
  struct Copy {
    at::Tensor memory, tensor;  // of equal shape and dtype; the tensor may have any strides
  };
  // `stream`: the one on which results come.
  DeviceCall(std::shared_ptr<Lane> lane, const c10::Stream& stream);

  // By the caller, in this order. Throws before anything moves while the caller's stream is being captured.
  void bring(const std::vector<Copy>& inputs, std::vector<Copy> results);
  comm::Ready ready() const;  // for the collective: whether the inputs have come; empty when it needs none
  // Enqueues the way back, then `after`, all of which is over when done() is.
  void take_back(const std::function<void()>& after);

  void collective_ended(bool failed);  // driver thread

  void block_callers_stream() const { done_->block(lane_->callers_stream()); }
  bool done() const { return done_->query(); }
  c10::Device device() const { return lane_->device(); }
  const c10::Stream& stream() const { return stream_; }  // after which it is done

 private:
  const std::shared_ptr<Lane> lane_;
  const c10::Stream stream_;
  const at::Tensor word_;
  const std::shared_ptr<c10::Event> done_;
  std::shared_ptr<std::atomic<bool>> here_;  // the inputs; null: there are none
  std::vector<Copy> results_;
};

}  // namespace ringdp::backend
