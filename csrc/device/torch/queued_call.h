// Calls that a device runs itself: what has to do with each of them, collectives, and the fused step.
//
//   caller's stream   ... | event
//   the queue's stream      event > what the call queues, which waits for the host's word > event
//   the driver              compares the headers of all ranks                       > word
//
// The word is written however the comparison ends, and a group that has failed makes devices abort first: what ranks
// disagree about, or what a dead rank left undone, becomes NaN and is never taken for a result. Integers have no NaN.
//
// While the caller's stream is captured the same goes into its graph, on a stream that joins the capture, without the
// word: wait(), which has to come within the capture, waits for the comparison on the host. Replays use the window,
// too: streams have to order them and the group's other calls, so a replay comes after a wait for the calls before it.
#pragma once
#include <atomic>
#include <chrono>
#include <vector>

#include "backend/shard_step.h"
#include "device/plan/plan.h"
#include "device/runtime/peer_memory.h"
#include "device/runtime/segments.h"
#include "device/torch/device_queue.h"
#include "device/torch/staged_call.h"

namespace ringdp::backend {

class QueuedCall : public RunningCall {
 public:
  comm::Ready ready() const override { return {}; }
  void enqueue(const std::function<void()>& after, const std::string& what) override;
  void collective_ended(bool failed) override;
  bool aborted() const override;
  bool is_captured() const override { return captured_; }

 protected:
  // Order() of the queue is held from here to the end of enqueue().
  QueuedCall(std::shared_ptr<DeviceQueue> queue, std::chrono::milliseconds timeout, bool captured = false);

  // On the queue's stream, which is the current one and has come behind the caller's.
  virtual void queue() = 0;

  gpu::DeviceRanks& ranks() const { return queue_->ranks(); }
  void* stream() const { return pool_->native(stream_); }
  uint64_t deadline_ns() const;  // of every wait of a kernel
  void await_checked() const;
  void copy(void* to, const void* from, int64_t bytes) const;  // any number of bytes
  void record(const std::vector<at::Tensor>& tensors) const;   // used on the stream
  void needs(std::shared_ptr<gpu::DeviceMemory> memory) {
    memory_ = std::move(memory);
  }                                                       // for as long as a graph may run it
  void launched(std::shared_ptr<const gpu::Work> work) {  // null: it is not known which rank it waits for
    if (work) launches_.push_back(std::move(work));
  }

 private:
  const std::shared_ptr<DeviceQueue> queue_;
  const std::chrono::milliseconds timeout_;
  const bool captured_;
  const uint32_t number_;
  mutable std::atomic<bool> is_good_{false};  // it was over before anything failed
  std::shared_ptr<gpu::DeviceMemory> memory_;
  std::vector<std::shared_ptr<const gpu::Work>> launches_;
};

// What a collective asks of devices that run it themselves.
struct CollectiveQuestion {
  plan::Problem problem;  // its count in elements, any number
  double divisor = 0;     // of a sum; 0: none
  std::chrono::milliseconds timeout;
  bool captured = false;         // into a graph, by the caller's stream
  gpu::SegmentRef segment = {};  // where the tensors lie; in none: they are copied to the window and back
};

// One collective that devices run themselves, over windows that all ranks of the host map.
//
//   the queue's stream      copy to window > plan > wait for the host's word > copy to tensor > poison?
//
// Tensors in a segment (device/runtime/segments.h) are where the plan runs:
//
//   the queue's stream      wait for the host's word > plan > poison?
//
// The plan comes last there, and looks whether the group is over: peers that have called something else would write
// into tensors that are none of this call. What a peer that goes on still writes is a sum of what all have brought, or
// of NaN.
class QueuedCollective final : public QueuedCall {
 public:
  // `tensors`: contiguous memory on the device, the parts of device/runtime/pieces.h; none where this rank brings or
  // gets none.
  QueuedCollective(std::shared_ptr<DeviceQueue> queue, const CollectiveQuestion& question, DeviceTensors tensors);

 private:
  void queue() override;
  gpu::Pieces cut() const;
  void run(const Extent& elements, bool first);
  void run_in_segment(const Extent& elements, bool first);
  gpu::DeviceRanks::Piece piece_of(const Extent& elements) const;
  void record_tensors() const;

  const CollectiveQuestion question_;
  const DeviceTensors tensors_;
  const gpu::Pieces pieces_;
  const plan::DeviceChoice choice_;
  const bool can_be_nan_;
};

// The fused step of a bucket: gradients of all ranks summed, this rank's part stepped, and given to everybody.
//
//   the queue's stream      gradients to window > barrier > wait for the host's word > step > barrier
//                           > others' parts from window to the parameters > poison
//
// Nothing is stepped before all ranks have called the same. After a failure parameters are NaN, and each element of the
// state is as it was or stepped. The own part is stepped where it lies; in others' windows it replaces gradients.
class QueuedStep final : public QueuedCall {
 public:
  // `gradients`: of the whole bucket; check(step, gradients, world) has passed. `divisor`: of their sums.
  QueuedStep(std::shared_ptr<DeviceQueue> queue, at::Tensor gradients, double divisor, ShardStep step, int rank,
             int world, std::chrono::milliseconds timeout);

 private:
  void queue() override;
  void run(const Extent& elements, bool first);
  void bring(const Extent& elements) const;
  void step(const ShardStep::Piece& piece, const Extent& elements) const;
  void fetch(const Extent& elements) const;
  bool gives() const { return step_.parameters.numel() == gradients_.numel(); }
  gpu::PeerMemory& peer_memory() const { return *ranks().sharing(); }
  int64_t window_at(int rank, const Extent& elements) const;

  const at::Tensor gradients_;
  const double divisor_;
  const ShardStep step_;
  const int rank_, world_;
  const int64_t part_;  // elements
  const gpu::Pieces pieces_;
};

}  // namespace ringdp::backend
