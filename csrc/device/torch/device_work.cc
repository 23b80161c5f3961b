#include "device/torch/device_work.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <thread>

#include "backend/errors.h"
#include "backend/process.h"

namespace ringdp::backend {

DeviceWork::DeviceWork(WorkFacts facts, std::vector<at::Tensor> on_host, std::vector<at::Tensor> used,
                       std::function<void()> after, std::unique_ptr<RunningCall> call)
    : Work(facts.rank, facts.type, facts.title, facts.inputs, std::move(facts.result), std::move(on_host),
           facts.completion),
      call_(std::move(call)),
      after_(std::move(after)),
      tensors_(std::move(used)) {}

// The last reference may be a garbage collector's.
DeviceWork::~DeviceWork() {
  const QuietDeviceGuard here(call_->device());
  future_.reset();
  call_.reset();
  tensors_.clear();
  let_go_of_memory();
}

void DeviceWork::attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence) {
  Work::attach(std::move(group), std::move(pending), sequence);
  try {
    call_->enqueue(after_, this->pending().describe());
  } catch (const std::exception& error) {
    this->group().fail(Error(ErrorKind::kInternal, std::string("the device accepts no more work: ") + error.what()));
    throw;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(value().type, std::vector<c10::Device>{call_->device()});
  const c10::DeviceGuard device(call_->device());
  const c10::StreamGuard guard(call_->stream());  // callbacks run on streams that wait for this one
  future_->markCompleted(value().value);
  return future_;
}

void DeviceWork::before_done(std::exception_ptr error) {
  call_->collective_ended(error != nullptr);
  Work::before_done(std::move(error));
}

void DeviceWork::leave_driver(c10::intrusive_ptr<Work> self) {
  dispose([self = std::move(self), this]() mutable {
    const QuietDeviceGuard here(call_->device());
    let_go_of_memory();
    self.reset();
  });
}

bool DeviceWork::isCompleted() { return pending().done() && (pending().error() || call_->done()); }

bool DeviceWork::isSuccess() const { return Work::isSuccess() && call_->done() && !call_->aborted(); }

std::exception_ptr DeviceWork::exception() const {
  return call_->aborted() ? to_torch(std::make_exception_ptr(why_aborted())) : Work::exception();
}

// Another rank may have aborted; waits briefly for its reason to arrive.
Error DeviceWork::why_aborted() const {
  const Deadline patience = Deadline::after(std::chrono::seconds(1));
  while (!group().error() && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return group().error().value_or(
      Error(ErrorKind::kAborted, "the process group was destroyed before the device had run " + pending().describe()));
}

void DeviceWork::throw_if_aborted() const {
  if (call_->aborted()) throw_torch(why_aborted());
}

bool DeviceWork::host_learns_something() const {
  // A replay compares no headers, so the capture must make sure that all ranks have captured the same call.
  return opType_ == c10d::OpType::BARRIER || opType_ == c10d::OpType::RECVANYSOURCE || call_->is_captured();
}

// Blocks the stream after an error, too: a caller that continues then finds NaN, not unfinished results.
void DeviceWork::wait_on_host(std::chrono::milliseconds timeout) {
  try {
    Work::wait(timeout);
  } catch (...) {
    if (pending().done()) call_->block_callers_stream();
    throw;
  }
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const bool own_limit = timeout != kNoTimeout;
  const Deadline limit = own_limit ? Deadline::after(timeout) : Deadline::never();
  if (own_limit || host_learns_something() || pending().done()) wait_on_host(timeout);
  call_->block_callers_stream();
  const bool host_waits = own_limit || opType_ == c10d::OpType::BARRIER;
  while (host_waits && !call_->done()) {
    throw_if_aborted();
    if (limit.passed()) {
      throw_torch(
          Error(ErrorKind::kTimeout, "wait(timeout) gave up after " + std::to_string(timeout.count()) +
                                         " ms: " + pending().describe() +
                                         " has finished on the host, but the device has not delivered its result yet"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  throw_if_aborted();
  std::vector<at::Tensor> unlocked;  // freed without the lock, because that may take the GIL
  {
    const std::lock_guard lock(tensors_mutex_);
    tensors_.swap(unlocked);
  }
  return true;
}

std::unique_lock<std::mutex> PreparedCall::order() const {
  return queue_ ? std::unique_lock(queue_->order()) : std::unique_lock<std::mutex>();
}

DeviceCall::Started PreparedCall::start(WorkFacts facts, DeviceTensors tensors, std::optional<int> source) const {
  std::vector<at::Tensor> on_host, used = tensors.written;
  std::vector<at::Tensor>& readers = is_staged() ? on_host : used;
  readers.insert(readers.end(), tensors.read.begin(), tensors.read.end());
  for (const auto& input : tensors.inputs) used.push_back(input.tensor);
  for (const auto& result : tensors.results) {
    used.push_back(result.tensor);
    if (is_staged()) on_host.push_back(result.memory);
  }
  std::function<void()> after = tensors.after;
  auto call = is_staged() ? stage(tensors, source) : make_(std::move(tensors));
  const auto work = c10::make_intrusive<DeviceWork>(std::move(facts), std::move(on_host), std::move(used),
                                                    std::move(after), std::move(call));
  return {work, work->ready()};
}

std::unique_ptr<RunningCall> PreparedCall::stage(const DeviceTensors& tensors, std::optional<int> source) const {
  const c10::Stream results = source ? pool_->results_from(*source) : pool_->results();
  auto call = std::make_unique<StagedCall>(pool_, tensors.results.empty() ? pool_->inputs() : results);
  for (const at::Tensor& tensor : tensors.written) pool_->record(tensor, call->stream());
  call->bring(tensors.inputs, tensors.results);
  return call;
}

}  // namespace ringdp::backend
