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

#include "backend/call_memory.h"
#include "backend/work.h"

namespace ringdp::backend {

class DeviceWork final : public Work {
 public:
  // `call`: of the tensors of `memory`, which are kept until the work is waited for.
  DeviceWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, Result result,
             const CallMemory& memory, std::unique_ptr<CallOnDevice> call, Completion& completion);

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
  Error why_given_up() const;
  void throw_if_given_up() const;

  const std::unique_ptr<CallOnDevice> call_;
  const std::function<void()> after_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;

  std::mutex tensors_mutex_;  // guards tensors_
  std::vector<at::Tensor> tensors_;
};

}  // namespace ringdp::backend
