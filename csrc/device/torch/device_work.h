// c10d::Work of a collective on device tensors: like NCCL's, wait() makes the caller's stream wait, not the host.
//
// wait() throws an error that is already known; every later call of the group throws one that comes later. The host
// waits only with a timeout, for barriers, for receives from any source, and for captured calls, whose headers all
// ranks must have compared.
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
  // `on_host`: memory that the collective uses on the host. `used`: tensors that the device uses, kept alive until
  // wait(). `after`: as in DeviceTensors.
  DeviceWork(WorkFacts facts, std::vector<at::Tensor> on_host, std::vector<at::Tensor> used,
             std::function<void()> after, std::unique_ptr<RunningCall> call);
  ~DeviceWork() override;

  comm::Ready ready() const { return call_->ready(); }
  void attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence) override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  // Completed at once: work that callbacks queue runs after the results. Made when it is asked for, as it takes an
  // event.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void before_done(std::exception_ptr error) override;
  void leave_driver(c10::intrusive_ptr<Work> self) override;
  void wait_on_host(std::chrono::milliseconds timeout);
  bool host_learns_something() const;
  Error why_aborted() const;
  void throw_if_aborted() const;

  std::unique_ptr<RunningCall> call_;
  const std::function<void()> after_;

  std::mutex future_mutex_;  // guards future_
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex tensors_mutex_;  // guards tensors_
  std::vector<at::Tensor> tensors_;
};

// A call before it starts: staged over the streams of a pool, or run by the device of a queue.
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
