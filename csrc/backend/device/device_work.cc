#include "backend/device/device_work.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <thread>

#include "backend/errors.h"

namespace ringdp::backend {

DeviceWork::DeviceWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                       Result result, const CallMemory& memory, std::optional<int> source, Completion& completion)
    : Work(rank, type, title, inputs, std::move(result), memory.on_host(), completion),
      call_(memory.start(source)),
      after_(memory.after()),
      future_(c10::make_intrusive<c10::ivalue::Future>(value().type, std::vector<c10::Device>{call_->device()})),
      tensors_(memory.on_device()) {}

void DeviceWork::attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence) {
  Work::attach(std::move(group), std::move(pending), sequence);
  try {
    call_->take_back(after_);
    complete_future();
  } catch (const std::exception& error) {
    this->group().fail(Error(ErrorKind::kInternal, std::string("the device takes no more work: ") + error.what()));
    throw;
  }
}

void DeviceWork::complete_future() {
  const c10::DeviceGuard device(call_->device());
  const c10::StreamGuard guard(call_->stream());  // to which callbacks' streams are tied
  future_->markCompleted(value().value);
}

void DeviceWork::before_done(std::exception_ptr error) {
  call_->collective_ended(error != nullptr);
  Work::before_done(std::move(error));
}

bool DeviceWork::isCompleted() { return pending().done() && (pending().error() || call_->done()); }

bool DeviceWork::isSuccess() const { return Work::isSuccess() && call_->done(); }

bool DeviceWork::host_learns_something() const {
  return opType_ == c10d::OpType::BARRIER || opType_ == c10d::OpType::RECVANYSOURCE;
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const bool own_limit = timeout != kNoTimeout;
  const Deadline limit = own_limit ? Deadline::after(timeout) : Deadline::never();
  if (own_limit || host_learns_something() || pending().done()) Work::wait(timeout);
  call_->block_callers_stream();
  while (own_limit && !call_->done()) {
    if (limit.passed()) {
      throw_torch(Error(ErrorKind::kTimeout,
                        "wait(timeout) gave up after " + std::to_string(timeout.count()) + " ms: " + pending().describe() +
                            " is over, but the device has not copied its result yet"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::vector<at::Tensor> unlocked;  // their end may take the GIL
  {
    const std::lock_guard lock(tensors_mutex_);
    tensors_.swap(unlocked);
  }
  return true;
}

}  // namespace ringdp::backend
