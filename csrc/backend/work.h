// c10d::Work over one collective: what Python waits for.
#pragma once
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/completion.h"
#include "comm/group.h"

namespace ringdp::backend {

class Work : public c10d::Work {
 public:
  struct Result {
    std::vector<at::Tensor> tensors;  // result()
    c10::IValue value;                // of the Future: List[Tensor] or List[List[Tensor]]
    c10::TypePtr type;
  };

  // `keep` are tensors whose memory the collective uses beyond `result`; released when it is done.
  Work(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, Result result,
       std::vector<at::Tensor> keep, Completion& completion);

  // Once, by the backend: the collective that this Work stands for. on_done() is its completion callback.
  void attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Op> op);
  void on_done(std::exception_ptr error);  // driver thread

  bool isCompleted() override;
  bool isSuccess() const override;
  // Finite even without a timeout: the collective's own deadline ends it.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return result_.tensors; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  float getDuration() const override;  // milliseconds

 private:
  void complete_future(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::exception_ptr error) const;

  const Result result_;
  std::vector<at::Tensor> keep_;
  Completion& completion_;
  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<comm::Op> op_;

  std::mutex future_mutex_;  // guards the next two
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool finished_ = false;
};

}  // namespace ringdp::backend
