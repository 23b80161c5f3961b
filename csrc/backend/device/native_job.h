// What has to do with every call that a device runs itself, whatever that puts on the lane's stream.
//
//   caller's stream   ... | event
//   the lane's stream       event > what the call queues, which waits for the host's word > event
//   the driver              compares everybody's notes                       > word
//
// The word is written however the comparison ends, and a group that has failed makes devices give up first: what ranks
// disagree about, or what a dead rank left undone, becomes NaN and is never taken for a result. Integers have no NaN.
//
// While the caller's stream is captured the same goes into its graph, on a stream that joins the capture, without the
// word: wait(), which has to come within the capture, waits for the comparison on the host. Replays use the window, too:
// streams have to order them and the group's other calls, so whoever replays has waited for the calls before.
#pragma once
#include <atomic>
#include <vector>

#include "backend/device/call_on_device.h"
#include "backend/device/native_lane.h"

namespace ringdp::backend {

class NativeJob : public CallOnDevice {
 public:
  comm::Ready ready() const override { return {}; }
  void enqueue(const std::function<void()>& after, const std::string& what) override;
  void collective_ended(bool failed) override;
  bool given_up() const override;
  bool is_captured() const override { return captured_; }

 protected:
  // Order() of the lane is held from here to the end of enqueue().
  NativeJob(std::shared_ptr<NativeLane> lane, std::chrono::milliseconds timeout, bool captured = false);

  // On the lane's stream, which is the current one and has come behind the caller's.
  virtual void queue() = 0;

  gpu::DeviceRanks& ranks() const { return native_->ranks(); }
  void* stream() const { return lane_->native(stream_); }
  uint64_t deadline_ns() const;  // of every wait of a kernel
  void await_checked() const;
  void copy(void* to, const void* from, int64_t bytes) const;  // any number of bytes
  void record(const std::vector<at::Tensor>& tensors) const;  // used on the stream
  void needs(std::shared_ptr<gpu::DeviceMemory> memory) { memory_ = std::move(memory); }  // for as long as a graph may run it
  void launched(std::shared_ptr<const gpu::Work> work) {  // null: nobody can say whom it waits for
    if (work) launches_.push_back(std::move(work));
  }

 private:
  const std::shared_ptr<NativeLane> native_;
  const std::chrono::milliseconds timeout_;
  const bool captured_;
  const uint32_t number_;
  mutable std::atomic<bool> is_good_{false};  // it was over before anything failed
  std::shared_ptr<gpu::DeviceMemory> memory_;
  std::vector<std::shared_ptr<const gpu::Work>> launches_;
};

}  // namespace ringdp::backend
