#include "backend/work.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "backend/errors.h"
#include "backend/gil.h"
#include "backend/process.h"
#include "base/deadline.h"

namespace ringdp::backend {
namespace {

using Future = c10::ivalue::Future;

// Counts the futures of a batch down; the last one completes the whole.
struct Countdown {
  explicit Countdown(size_t works) : left(works) {}
  std::atomic<size_t> left;
  std::mutex mutex;  // guards error
  std::exception_ptr error;

  void keep(std::exception_ptr first) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(first);
  }
};

// The devices of the parts; empty when all are on the CPU.
std::vector<c10::Device> devices_of(const std::vector<c10::intrusive_ptr<Future>>& parts) {
  std::vector<c10::Device> devices;
  for (const auto& part : parts) {
    for (const c10::Device device : part->devices()) {
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
    }
  }
  return devices;
}

std::vector<c10::Stream> fresh_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device device : devices) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  }
  return streams;
}

std::optional<c10::Device> first_of(const std::vector<c10::Device>& devices) {
  return devices.empty() ? std::nullopt : std::optional(devices.front());
}

// A Future with devices completes after the work that the current streams wait for. Its events reset the thread's
// device to what it was before, also where that makes a context.
void complete_behind(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, Future& whole,
                     const std::vector<at::Tensor>& tensors) {
  const c10::OptionalDeviceGuard device(first_of(whole.devices()));
  const c10::MultiStreamGuard streams(fresh_streams(whole.devices()));
  try {
    for (const auto& work : works) work->wait();
  } catch (...) {
    return whole.setError(std::current_exception());
  }
  whole.markCompleted(tensors);
}

}  // namespace

Work::Work(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, Result result,
           std::vector<at::Tensor> keep, Completion& completion)
    : c10d::Work(rank, type, title, inputs),
      result_(std::move(result)),
      keep_(std::move(keep)),
      completion_(completion) {
  for (const auto* tensors : {&std::as_const(keep_), &result_.tensors}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.has_storage()) storages_.push_back(tensor.storage());
    }
  }
}

// on_done, which is the last to be called, holds this.
void Work::follow(comm::Ending& ending) {
  if (ending.epilogue) {
    epilogue_ = std::move(ending.epilogue);
    ending.epilogue = [this] { epilogue_(); };
  }
  ending.before_done = [this](std::exception_ptr error) { before_done(std::move(error)); };
  ending.on_done = [self = c10::intrusive_ptr<Work>::reclaim_copy(this)](std::exception_ptr error) mutable {
    Work& ended = *self;
    ended.on_done(std::move(error));
    ended.leave_driver(std::move(self));
  };
}

void Work::attach(std::shared_ptr<comm::Group> group, std::shared_ptr<comm::Pending> pending, uint64_t sequence) {
  group_ = std::move(group);
  pending_ = std::move(pending);
  sequence_ = sequence;
}

void Work::end_event() {
  const std::lock_guard lock(event_mutex_);
  if (!recordFunctionEndCallback_) return;
  recordFunctionEndCallback_();
  recordFunctionEndCallback_ = nullptr;
}

void end_event(c10d::Work& work) {
  if (auto* const own = dynamic_cast<Work*>(&work)) own->end_event();
}

void Work::leave_driver(c10::intrusive_ptr<Work> self) {
  if (self.use_count() == 1) completion_.post([self = std::move(self)] {});
}

void Work::let_go_of_memory() {
  std::vector<at::Tensor> kept;  // freed without the lock, because that may take the GIL
  std::vector<c10::Storage> storages;
  std::function<void()> epilogue;
  const std::lock_guard lock(memory_mutex_);
  kept.swap(keep_);
  storages.swap(storages_);
  epilogue.swap(epilogue_);
}

void Work::before_done(std::exception_ptr error) {
  end_event();
  finish(to_torch(std::move(error)));
}

void Work::on_done(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    finished_ = true;
    future = future_;
  }
  if (!future) return;
  completion_.post([self = c10::intrusive_ptr<Work>::reclaim_copy(this), future, error = to_torch(std::move(error))] {
    self->complete_future(future, error);
  });
}

bool Work::isCompleted() {
  if (!pending_->done()) return false;
  let_go_of_memory();
  return true;
}

bool Work::isSuccess() const { return pending_->done() && !pending_->error(); }

std::exception_ptr Work::exception() const { return pending_->done() ? to_torch(pending_->error()) : nullptr; }

bool Work::wait(std::chrono::milliseconds timeout) {
  const auto leaves_nothing_open = c10::make_scope_exit([this] {  // also if it throws
    end_event();
    if (pending_->done()) let_go_of_memory();
  });
  return guarded([&] {
    const bool own_limit = timeout != kNoTimeout;
    const Deadline limit = own_limit ? Deadline::after(timeout) : Deadline::never();
    const bool main = runs_signal_handlers();
    while (!group_->wait(*pending_, main ? earlier(limit, Deadline::after(kSignalsEvery)) : limit)) {
      if (limit.passed()) {
        throw Error(ErrorKind::kTimeout, "wait(timeout) gave up after " + std::to_string(timeout.count()) + " ms; " +
                                             pending_->describe() + " itself goes on until its own deadline");
      }
      if (main) run_signal_handlers();
    }
    stay_if_the_process_ends();
    return true;
  });
}

void Work::abort() {
  group_->fail(Error(ErrorKind::kAborted, "abort() was called on the Work of " + pending_->describe() + " on rank " +
                                              std::to_string(rank_)));
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  std::unique_lock lock(future_mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(result_.type);
  if (!finished_) return future_;  // on_done() will complete it
  lock.unlock();
  // Behind the Futures of earlier collectives, so that callbacks keep their order.
  const auto error = to_torch(pending_->error());
  if (completion_.may_run_here()) {
    complete_future(future_, error);
  } else {
    completion_.post(
        [self = c10::intrusive_ptr<Work>::reclaim_copy(this), error] { self->complete_future(self->future_, error); });
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

int Work::sourceRank() const {
  const auto* message = dynamic_cast<const comm::Message*>(pending_.get());
  if (message == nullptr || message->direction() != comm::Direction::kReceive) {
    refuse("only a receive has a source rank; this is " + pending_->describe());
  }
  return message->partner();
}

float Work::getDuration() const { return static_cast<float>(pending_->seconds() * 1e3); }

Work::Result flat_result(const std::vector<at::Tensor>& tensors) {
  return {tensors, tensors, c10::ListType::create(c10::TensorType::get())};
}

Work::Result nested_result(const std::vector<std::vector<at::Tensor>>& lists) {
  const auto type = c10::ListType::create(c10::ListType::create(c10::TensorType::get()));
  return {lists.empty() ? std::vector<at::Tensor>{} : lists[0], lists, type};
}

BatchWork::BatchWork(int rank, std::vector<WorkPtr> works)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {
  for (const WorkPtr& work : works_) end_event(*work);
}

bool BatchWork::isCompleted() {
  for (const WorkPtr& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool BatchWork::isSuccess() const {
  for (const WorkPtr& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr BatchWork::exception() const {
  for (const WorkPtr& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

bool BatchWork::wait(std::chrono::milliseconds timeout) {
  const Deadline deadline = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
  for (const WorkPtr& work : works_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now());
    work->wait(timeout == kNoTimeout ? kNoTimeout : std::max(left, std::chrono::milliseconds(1)));
  }
  return true;
}

void BatchWork::abort() {
  for (const WorkPtr& work : works_) work->abort();
}

std::vector<at::Tensor> BatchWork::result() {
  std::vector<at::Tensor> tensors;
  for (const WorkPtr& work : works_) {
    const std::vector<at::Tensor> part = work->result();
    tensors.insert(tensors.end(), part.begin(), part.end());
  }
  return tensors;
}

c10::intrusive_ptr<Future> BatchWork::getFuture() {
  const auto tensors = result();
  std::vector<c10::intrusive_ptr<Future>> parts;
  for (const WorkPtr& work : works_) parts.push_back(work->getFuture());
  auto whole = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices_of(parts));
  if (works_.empty()) whole->markCompleted(tensors);
  const auto countdown = std::make_shared<Countdown>(works_.size());
  for (const auto& each : parts) {
    each->addCallback([countdown, whole, tensors, works = works_](Future& part) {
      if (part.hasError()) countdown->keep(part.exception_ptr());
      if (--countdown->left > 0) return;
      if (countdown->error) {
        whole->setError(countdown->error);
      } else {
        complete_behind(works, *whole, tensors);
      }
    });
  }
  return whole;
}

}  // namespace ringdp::backend
