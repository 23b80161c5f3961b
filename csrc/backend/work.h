// c10d::Work over one collective or message, or over several: what Python waits for.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "backend/process.h"
#include "comm/group.h"

namespace ringdp::backend {

class Work : public c10d::Work {
 public:
  struct Result {
    std::vector<at::Tensor> tensors;  // result()
    c10::IValue value;                // of the Future: List[Tensor] or List[List[Tensor]]
    c10::TypePtr type;
  };

  // `keep` are tensors whose memory the call uses beyond `result`; released by wait(), isCompleted() or with this.
  Work(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, Result result,
       std::vector<at::Tensor> keep, Completion& completion);

  // Each is called once by the backend: follow() makes the end of the request end this Work, and takes its epilogue
  // over; attach() names what it stands for. `sequence`: of a collective, else 0.
  void follow(comm::Ending& ending);
  virtual void attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence);
  // Ends the profiler's event, if it has not ended. A profiler that is stopped frees its events, so they must end on
  // the thread that has made the call, before it goes on: when an asynchronous one is submitted, else in wait().
  void end_event();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;  // null until it has failed
  // Finite even without a timeout: the call's own deadline ends it. In Python's main thread it throws what a signal
  // handler raises, and the call goes on.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return result_.tensors; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  int sourceRank() const override;     // of a receive, once it is done
  float getDuration() const override;  // milliseconds

 protected:
  virtual void before_done(std::exception_ptr error);  // driver thread
  // Driver thread, at last, with its reference. Whoever drops the last one frees tensors, which may take the GIL: not
  // this thread, for which peers wait.
  virtual void leave_driver(c10::intrusive_ptr<Work> self);
  void let_go_of_memory();  // of `keep`, of the result's tensors as they were at the call, of the epilogue; once done
  const Result& value() const { return result_; }
  comm::Group& group() const { return *group_; }
  const comm::Pending& pending() const { return *pending_; }

 private:
  void on_done(std::exception_ptr error);  // driver thread; completes the Future
  void complete_future(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::exception_ptr error) const;

  const Result result_;
  std::mutex memory_mutex_;  // guards the next three once the work is done
  std::vector<at::Tensor> keep_;
  std::vector<c10::Storage> storages_;  // a tensor may get another one (`.data = ...`) while the call uses this
  std::function<void()> epilogue_;
  Completion& completion_;
  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<comm::Pending> pending_;
  uint64_t sequence_ = 0;

  std::mutex event_mutex_;   // guards recordFunctionEndCallback_, which is not written after before_done()
  std::mutex future_mutex_;  // guards the next two
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool finished_ = false;
};

// Results whose Future gives the tensors themselves, or lists of them.
Work::Result flat_result(const std::vector<at::Tensor>& tensors);
Work::Result nested_result(const std::vector<std::vector<at::Tensor>>& lists);

// Work::end_event(), if it is a Work of ringdp.
void end_event(c10d::Work& work);

// A c10d::Work that stands for several: coalesced forms, and all calls between startCoalescing and endCoalescing.
// Ends the events of all: wait() may throw at the first one.
//
// Done when the last of `works` is; may be empty. Fails with the first error: wait() in the order of the calls, the
// Future in the order of time.
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
  std::vector<at::Tensor> result() override;                     // of all, in order
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;  // List[Tensor]: result()

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace ringdp::backend
