#include "backend/batch.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
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

  void keep(std::exception_ptr first) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(first);
  }
};

// Of the parts; empty when all are of the CPU.
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

// A Future of devices is complete behind whatever the current streams are behind.
void complete_behind(const std::vector<c10::intrusive_ptr<c10d::Work>>& works, Future& whole,
                     const std::vector<at::Tensor>& tensors) {
  const c10::MultiStreamGuard streams(fresh_streams(whole.devices()));
  try {
    for (const auto& work : works) work->wait();
  } catch (...) {
    return whole.setError(std::current_exception());
  }
  whole.markCompleted(tensors);
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
