// c10d::Work over a collective of tensors of a device: as NCCL's, wait() makes the caller's stream wait, not the host.
//
// An error that is known is thrown by wait(), one that comes later by every later call of the group. The host waits
// where it was given a timeout, and where it learns something: barriers, receives from any source, and calls that are
// captured into a graph, which all ranks have to have called alike.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/torch/device_collectives.h"
#include "device/torch/device_queue.h"
#include "device/torch/staged_call.h"

namespace ringdp::backend {

class DeviceWork final : public Work {
 public:
  // `on_host`: memory that the collective of the host uses. `used`: tensors that the device uses, which are kept until
  // the work is waited for. `after`: as DeviceTensors has it.
  DeviceWork(WorkFacts facts, std::vector<at::Tensor> on_host, std::vector<at::Tensor> used,
             std::function<void()> after, std::unique_ptr<RunningCall> call);

  comm::Ready ready() const { return call_->ready(); }
  void attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence) override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  // Completed at once: what callbacks queue comes behind the results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  void before_done(std::exception_ptr error) override;
  void complete_future();
  void wait_on_host(std::chrono::milliseconds timeout);
  bool host_learns_something() const;
  Error why_aborted() const;
  void throw_if_aborted() const;

  const std::unique_ptr<RunningCall> call_;
  const std::function<void()> after_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;

  std::mutex tensors_mutex_;  // guards tensors_
  std::vector<at::Tensor> tensors_;
};

// A call before it starts: staged over a pool's streams, or one that a queue's device runs.
class PreparedCall final : public DeviceCall {
 public:
  using Make = std::function<std::unique_ptr<RunningCall>(DeviceTensors)>;
  explicit PreparedCall(std::shared_ptr<StreamPool> pool) : pool_(std::move(pool)) {}
  PreparedCall(std::shared_ptr<DeviceQueue> queue, Make make)
      : pool_(queue->pool()), queue_(std::move(queue)), make_(std::move(make)) {}

  c10::Device device() const override { return pool_->device(); }
  bool is_staged() const override { return queue_ == nullptr; }
  at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype) const override { return pool_->pinned(sizes, dtype); }
  std::unique_lock<std::mutex> order() const override;
  Started start(WorkFacts facts, DeviceTensors tensors, std::optional<int> source) const override;

 private:
  std::unique_ptr<RunningCall> stage(const DeviceTensors& tensors, std::optional<int> source) const;

  const std::shared_ptr<StreamPool> pool_;
  const std::shared_ptr<DeviceQueue> queue_;  // null: staged
  const Make make_;
};

}  // namespace ringdp::backend
