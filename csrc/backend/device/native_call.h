// One collective that devices run themselves, over windows that all ranks of the host map.
//
//   caller's stream   ... | event
//   the lane's stream       event > copy to window > plan > wait for the host's word > copy to tensor > poison? > event
//   the driver              compares everybody's notes                        > word
//
// The word is written however the comparison ends, and a group that has failed makes devices give up first: what ranks
// disagree about, or what a dead rank left undone, becomes NaN and is never taken for a result. Integers have no NaN.
//
// While the caller's stream is captured the same goes into its graph, on a stream that joins the capture, without the
// word: wait(), which has to come within the capture, waits for the comparison on the host. Replays use the window,
// too: streams have to order them and the group's other calls, so whoever replays has waited for the calls before.
#pragma once
#include <atomic>
#include <vector>

#include "backend/device/call_on_device.h"
#include "backend/device/native_lane.h"
#include "backend/device/native_question.h"

namespace ringdp::backend {

class NativeCall final : public CallOnDevice {
 public:
  // Contiguous memory on the device. Order() of the lane is held from here to the end of enqueue().
  struct Tensors {
    std::vector<at::Tensor> inputs, outputs;  // the parts of gpu/pieces.h; none where this rank brings or gets none
    std::vector<at::Tensor> written;          // by what comes after
    struct Copy {
      at::Tensor memory, tensor;
    };
    std::vector<Copy> results;  // outputs and where their elements belong
  };
  NativeCall(std::shared_ptr<NativeLane> lane, const NativeQuestion& question, Tensors tensors);

  comm::Ready ready() const override { return {}; }
  void enqueue(const std::function<void()>& after, const std::string& what) override;
  void collective_ended(bool failed) override;
  bool given_up() const override;
  bool is_captured() const override { return question_.captured; }

 private:
  void run(const Extent& elements, bool first);
  std::chrono::milliseconds grace() const;
  void copy(void* to, const void* from, int64_t bytes) const;
  void record_tensors() const;

  const std::shared_ptr<NativeLane> native_;
  const NativeQuestion question_;
  const Tensors tensors_;
  const gpu::Pieces pieces_;
  const plan::DeviceChoice choice_;
  const uint32_t number_;
  const bool can_be_nan_;
  mutable std::atomic<bool> is_good_{false};  // it was over before anything failed
  std::vector<std::shared_ptr<const gpu::Work>> launches_;
};

}  // namespace ringdp::backend
