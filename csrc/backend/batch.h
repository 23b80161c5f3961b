// A c10d::Work that stands for several: coalesced forms, and all calls between startCoalescing and endCoalescing.
#pragma once
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ringdp::backend {

// Done when the last of `works` is; may be empty. Fails with the first error: of the calls in their order when it is
// waited for, in time when its Future is.
class BatchWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  BatchWork(int rank, std::vector<WorkPtr> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;  // the timeout is for all together
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override;              // of all, in order
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;  // List[Tensor]: result()

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace ringdp::backend
