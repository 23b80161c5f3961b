#include "backend/completion.h"

#include "base/log.h"

namespace ringdp::backend {
namespace {

thread_local Completion* running_here = nullptr;  // whose thread this is

}  // namespace

Completion::~Completion() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Completion::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      new std::function<void()>(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Completion::end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while ((running_ || !tasks_.empty()) && !deadline.passed()) {
    changed_.wait_until(lock, earlier(deadline, Deadline::after(std::chrono::seconds(1))).at());
  }
  ended_ = true;
  auto left = new std::deque<std::function<void()>>;
  left->swap(tasks_);
  if (inner_) inner_->end(deadline);
}

Completion& Completion::for_caller() {
  if (running_here == nullptr) return *this;
  auto& inner = running_here->inner_;
  if (!inner) inner = std::make_unique<Completion>();
  return *inner;
}

bool Completion::may_run_here() {
  const std::lock_guard lock(mutex_);
  return (tasks_.empty() && !running_) || std::this_thread::get_id() == thread_.get_id();
}

void Completion::loop() {
  running_here = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    try {
      task();
    } catch (const std::exception& error) {
      log_line(LogLevel::kError, "", std::string("a callback of a collective's Future failed: ") + error.what());
    }
    task = nullptr;  // what it holds dies outside the lock
    lock.lock();
    running_ = false;
    if (tasks_.empty()) changed_.notify_all();
  }
}

}  // namespace ringdp::backend
