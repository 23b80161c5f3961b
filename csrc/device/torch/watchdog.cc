#include "device/torch/watchdog.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::seconds kPatience{10};  // for peers that still map a rank's memory

// Returns false when the device's runtime no longer works, as at process exit.
template <class F>
bool serves(F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "ringdp", std::string("no longer watching a device: ") + error.what());
    return false;
  }
}

void add(std::vector<std::shared_ptr<DeviceQueue>>& queues, std::shared_ptr<DeviceQueue> queue) {
  if (std::find(queues.begin(), queues.end(), queue) == queues.end()) queues.push_back(std::move(queue));
}

// Sets the thread's current device: else the runtime would create a context on the first device.
bool teardown(std::shared_ptr<DeviceQueue> queue) {
  const c10::DeviceGuard device(queue->pool()->device());
  queue->teardown();
  const Deadline patience = Deadline::after(kPatience);
  while (!queue->is_unmapped_by_peers() && !patience.passed()) std::this_thread::sleep_for(kPause);
  queue.reset();
  return true;
}

}  // namespace

Watchdog& Watchdog::instance() {
  static Watchdog* const instance = new Watchdog;
  return *instance;
}

Watchdog::Watchdog() {
  std::thread([this] { run(); }).detach();
  std::thread([this] { tear_down(); }).detach();
}

void Watchdog::watch(QueuePtr queue) {
  const std::lock_guard lock(mutex_);
  add(queues_, std::move(queue));
  more_.notify_one();
}

void Watchdog::teardown(QueuePtr queue) {
  queue->leave();
  const std::lock_guard lock(mutex_);
  leaving_.push_back(queue);
  add(queues_, std::move(queue));
  more_.notify_one();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return !queues_.empty(); });
    poll_all(lock);
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

// A queue that was added again meanwhile stays, because its new calls were not seen.
void Watchdog::poll_all(std::unique_lock<std::mutex>& lock) {
  auto queues = std::move(queues_);
  queues_.clear();
  for (QueuePtr& queue : queues) {
    lock.unlock();
    const bool goes_on = serves([&] { return queue->poll(); });
    lock.lock();
    const auto leaving = std::find(leaving_.begin(), leaving_.end(), queue);
    if (goes_on) {
      add(queues_, queue);
    } else if (leaving != leaving_.end()) {
      leaving_.erase(leaving);
      ended_.push_back(std::move(queue));  // destroying it waits for the device
      teardown_.notify_one();
    }
  }
}

void Watchdog::tear_down() {
  std::unique_lock lock(mutex_);
  for (;;) {
    teardown_.wait(lock, [this] { return !ended_.empty(); });
    auto queues = std::move(ended_);
    ended_.clear();
    lock.unlock();
    for (QueuePtr& queue : queues) serves([&] { return backend::teardown(std::move(queue)); });
    queues.clear();
    lock.lock();
  }
}

}  // namespace ringdp::backend
