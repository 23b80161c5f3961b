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

#include "backend/device/call_on_device.h"

namespace ringdp::backend {

class DeviceCall final : public CallOnDevice {
 public:
  struct Copy {
    at::Tensor memory, tensor;  // of equal shape and dtype; the tensor may have any strides
  };
  // `stream`: the one on which results come.
  DeviceCall(std::shared_ptr<Lane> lane, const c10::Stream& stream);

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
