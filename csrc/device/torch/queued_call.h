// Calls that a device runs itself: collectives and the fused step.
//
//   caller's stream   ... | event
//   the queue's stream      event > what the call queues, which waits for the host's word > event
//   the driver              compares the headers of all ranks                       > word
//
// The word is written however the comparison ends, and a group that has failed makes the devices abort first: after a
// mismatch or the death of a rank, floating-point results become NaN and are never taken for sums. Integers have no
// NaN.
//
// While the caller's stream is being captured, the same work goes into its graph, on a stream that joins the capture,
// without the word: wait(), which must be called within the capture, waits for the comparison on the host. Replays use
// the window, too, so streams must order them after the group's earlier calls.
#pragma once
#include <atomic>
#include <chrono>
#include <vector>

#include "backend/shard_step.h"
#include "device/plan/plan.h"
#include "device/runtime/peer_memory.h"
#include "device/runtime/symmetric_buffers.h"
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
  // The caller holds order() of the queue from here to the end of enqueue().
  QueuedCall(std::shared_ptr<DeviceQueue> queue, std::chrono::milliseconds timeout, bool captured = false);

  // Enqueues the work. The current stream is the queue's, and already waits for the caller's.
  virtual void queue() = 0;

  gpu::DeviceRanks& ranks() const { return queue_->ranks(); }
  DeviceQueue& device_queue() const { return *queue_; }
  void* stream() const { return pool_->native(stream_); }
  uint64_t deadline_ns() const;  // per wait of a kernel
  void await_release() const;
  void copy(void* to, const void* from, int64_t bytes, void* stream) const;              // any number of bytes
  void record(const std::vector<at::Tensor>& tensors, const c10::Stream& stream) const;  // which uses these tensors
  void needs(std::shared_ptr<gpu::DeviceMemory> memory) {
    memory_ = std::move(memory);
  }  // keeps it alive for as long as a graph may use it
  void launched(gpu::Launched launch) {
    if (launch.plan) launches_.push_back(std::move(launch));
  }

 private:
  const std::shared_ptr<DeviceQueue> queue_;
  const std::chrono::milliseconds timeout_;
  const bool captured_;
  const uint32_t number_;
  mutable std::atomic<bool> is_good_{false};  // it finished before anything failed
  std::shared_ptr<gpu::DeviceMemory> memory_;
  std::vector<gpu::Launched> launches_;
};

// A collective for devices to run.
struct CollectiveRequest {
  plan::Problem problem;  // with any count of elements
  double divisor = 0;     // of a sum; 0: none
  std::chrono::milliseconds timeout;
  bool captured = false;       // into the graph of the caller's stream
  gpu::BufferRef buffer = {};  // that holds the tensors; none: they are copied to the window and back
};

// One collective that devices run.
//
//   the queue's stream      copy to window > plan > wait for the host's word > copy to tensor > poison?
//
// Several pieces use the halves of the window by turns, and copies have a stream of their own: the next piece comes,
// and the last one leaves, while a plan runs.
//
//   the stream of copies    1 to window > 2 to window            > 1 to tensor, poison? > 3 to window > ...
//   the queue's stream                  > plan of 1 > the word   > plan of 2                          > ...
//
// A plan that touches no tensors but this rank's runs on them, without the copies, where they are whole packs.
//
// On tensors in a symmetric buffer (device/runtime/symmetric_buffers.h) the plan runs in place:
//
//   the queue's stream      wait for the host's word > plan > poison?
//
// There the plan runs after the word, and first checks whether the group has failed: after a mismatch it would write to
// tensors that do not belong to the call. What a peer still writes after a failure is the sum of all ranks' inputs, or
// NaN.
class QueuedCollective final : public QueuedCall {
 public:
  // `tensors`: the parts of device/runtime/pieces.h, contiguous on the device; none where this rank has no input or
  // output.
  QueuedCollective(std::shared_ptr<DeviceQueue> queue, const CollectiveRequest& request, DeviceTensors tensors);

 private:
  void queue() override;
  gpu::Pieces cut() const;
  void run_in_window();
  void bring(size_t index, const c10::Stream& copies) const;
  void run(size_t index);
  void fetch(size_t index, const c10::Stream& copies) const;
  bool fits_plan(size_t index) const;
  void run_in_buffer(const Extent& elements, bool first);
  gpu::DeviceRanks::Piece piece_of(const Extent& elements) const;
  char* at(const at::Tensor& part, const Extent& elements) const;
  int64_t held(const at::Tensor& part, const Extent& elements) const;
  void record_tensors(const c10::Stream& stream) const;

  const CollectiveRequest request_;
  const DeviceTensors tensors_;
  const gpu::Pieces pieces_;
  const plan::DeviceChoice choice_;
  const bool can_be_nan_;
};

// The fused step of a bucket: sums the gradients of all ranks, steps this rank's part, and stores it to all ranks.
//
//   the queue's stream      gradients to window > barrier > wait for the host's word > step > barrier
//                           > others' parts from window to the parameters > poison
//
// Nothing is stepped before all ranks have made the same call. After a failure parameters are NaN, and each element of
// the state is either unchanged or stepped. This rank's part is stepped in place, and replaces gradients in peers'
// windows.
class QueuedStep final : public QueuedCall {
 public:
  // `gradients`: of the whole bucket; check(step, gradients, world) has passed. `divisor`: of their sum.
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
