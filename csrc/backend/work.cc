#include "backend/work.h"

#include "backend/errors.h"

namespace ringdp::backend {

Work::Work(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, Result result,
           std::vector<at::Tensor> keep, Completion& completion)
    : c10d::Work(rank, type, title, inputs), result_(std::move(result)), keep_(std::move(keep)), completion_(completion) {}

void Work::attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Op> op) {
  group_ = std::move(group);
  op_ = std::move(op);
}

void Work::on_done(std::exception_ptr error) {
  error = to_torch(std::move(error));
  keep_.clear();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    finished_ = true;
    future = future_;
  }
  finish(error);  // ends the profiler's event
  if (!future) return;
  completion_.post([self = c10::intrusive_ptr<Work>::reclaim_copy(this), future, error] {
    self->complete_future(future, error);
  });
}

bool Work::isCompleted() { return op_->done(); }

bool Work::isSuccess() const { return op_->done() && !op_->error(); }

bool Work::wait(std::chrono::milliseconds timeout) {
  return guarded([&] {
    const bool own_limit = timeout != kNoTimeout;
    const Deadline limit = own_limit ? Deadline::after(timeout) : Deadline::never();
    if (!group_->wait(*op_, limit)) {
      throw Error(ErrorKind::kTimeout, "wait(timeout) gave up after " + std::to_string(timeout.count()) + " ms; " +
                                           comm::describe(op_->desc()) + " #" + std::to_string(op_->desc().seq) +
                                           " itself goes on until its own deadline");
    }
    return true;
  });
}

void Work::abort() {
  group_->fail(Error(ErrorKind::kAborted, "abort() was called on the Work of " + comm::describe(op_->desc()) + " #" +
                                              std::to_string(op_->desc().seq) + " on rank " + std::to_string(rank_)));
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  std::unique_lock lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(result_.type);
  if (!finished_) return future_;  // on_done() will complete it
  lock.unlock();
  // Behind the Futures of earlier collectives, so that callbacks keep their order.
  const auto error = to_torch(op_->error());
  if (completion_.may_run_here()) {
    complete_future(future_, error);
  } else {
    completion_.post([self = c10::intrusive_ptr<Work>::reclaim_copy(this), error] {
      self->complete_future(self->future_, error);
    });
  }
  return future_;
}

void Work::complete_future(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::exception_ptr error) const {
  if (error) {
    future->setError(std::move(error));
  } else {
    future->markCompleted(result_.value);
  }
}

uint64_t Work::getSequencenumber() const { return op_->desc().seq; }

float Work::getDuration() const { return static_cast<float>(op_->seconds() * 1e3); }

}  // namespace ringdp::backend
