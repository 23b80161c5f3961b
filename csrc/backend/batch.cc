#include "backend/batch.h"

#include <atomic>
#include <memory>

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
};

void arrive(Countdown& countdown, Future& part, Future& whole, const std::vector<at::Tensor>& tensors) {
  if (part.hasError()) {
    const std::lock_guard lock(countdown.mutex);
    if (!countdown.error) countdown.error = part.exception_ptr();
  }
  if (--countdown.left > 0) return;
  if (countdown.error) {
    whole.setError(countdown.error);
  } else {
    whole.markCompleted(tensors);
  }
}

}  // namespace

BatchWork::BatchWork(int rank, std::vector<WorkPtr> works)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

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
  auto whole = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  if (works_.empty()) whole->markCompleted(tensors);
  const auto countdown = std::make_shared<Countdown>(works_.size());
  for (const WorkPtr& work : works_) {
    const auto count = [countdown, whole, tensors](Future& part) { arrive(*countdown, part, *whole, tensors); };
    work->getFuture()->addCallback(count);
  }
  return whole;
}

}  // namespace ringdp::backend
