#include "backend/process.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "backend/gil.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/of_this_process.h"
#include "base/settings.h"

namespace ringdp::backend {
namespace {

struct LoggingRuntime {
  LoggingRuntime() { set_log_level(log_level_from_environment()); }
  comm::Runtime runtime;
};

OfThisProcess<LoggingRuntime>& runtimes() {
  static OfThisProcess<LoggingRuntime> instance;
  return instance;
}

OfThisProcess<Completion>& completions() {
  static OfThisProcess<Completion> instance;
  return instance;
}

OfThisProcess<Completion>& disposals() {
  static OfThisProcess<Completion> instance;
  return instance;
}

std::atomic<pid_t> ending_thread{0};  // 0: the process goes on

struct Registry {
  ForkMutex mutex;  // guards groups
  std::vector<std::weak_ptr<comm::Group>> groups;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

thread_local Completion* running_here = nullptr;  // whose thread this is

}  // namespace

comm::Runtime& runtime() { return runtimes().get().runtime; }

Completion& completion() { return completions().get().for_caller(); }

void dispose(std::function<void()> task) { disposals().get().post(std::move(task)); }

void wait_for_disposal(Deadline deadline) {
  if (Completion* const known = disposals().known()) known->drain(deadline);
}

void remember(const std::shared_ptr<comm::Group>& group) {
  const std::lock_guard lock(registry().mutex);
  auto& groups = registry().groups;
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](const auto& old) { return old.expired(); }),
               groups.end());
  groups.push_back(group);
}

std::vector<std::shared_ptr<comm::Group>> remembered() {
  std::vector<std::shared_ptr<comm::Group>> alive;
  const std::lock_guard lock(registry().mutex);
  for (const auto& group : registry().groups) {
    if (auto held = group.lock()) alive.push_back(std::move(held));
  }
  return alive;
}

void leave_groups() {
  const std::string words = last_words();
  for (const auto& group : remembered()) group->leave(words);
}

void leave_all() {
  constexpr auto kPatience = std::chrono::seconds(1);
  ending_thread = ::gettid();
  leave_groups();
  if (LoggingRuntime* const known = runtimes().known()) known->runtime.engine.end(Deadline::after(kPatience));
  for (auto* const threads : {&completions(), &disposals()}) {
    if (Completion* const known = threads->known()) known->end(Deadline::after(kPatience));
  }
}

void stay_if_the_process_ends() {
  const pid_t ending = ending_thread;
  if (ending == 0 || ending == ::gettid()) return;
  const ReleaseGil release;  // which the ending thread needs
  for (;;) ::pause();
}

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

void Completion::drain(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  while ((running_ || !tasks_.empty()) && !deadline.passed()) {
    changed_.wait_until(lock, deadline.next_look());
  }
}

void Completion::drain(Deadline deadline) {
  std::unique_lock lock(mutex_);
  drain(lock, deadline);
}

void Completion::end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  drain(lock, deadline);
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

std::string last_words() noexcept {
  if (!Py_IsInitialized()) return "";
  const pybind11::gil_scoped_acquire gil;
  try {
    return pybind11::module_::import("ringdp.last_words").attr("current")().cast<std::string>();
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "", std::string("no last words: ") + error.what());
    return "";
  }
}

}  // namespace ringdp::backend
