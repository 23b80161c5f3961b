#include "backend/device/overseer.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::seconds kPatience{10};  // with peers that still map a rank's memory

// Whether the device's runtime still serves: not at the end of the process.
template <class F>
bool serves(F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    log_line(LogLevel::kDebug, "ringdp", std::string("a device is looked after no more: ") + error.what());
    return false;
  }
}

void add(std::vector<std::shared_ptr<NativeLane>>& lanes, std::shared_ptr<NativeLane> lane) {
  if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) lanes.push_back(std::move(lane));
}

// With its device as the thread's current one: else the runtime would make itself at home on the first device.
bool part(std::shared_ptr<NativeLane> lane) {
  const c10::DeviceGuard device(lane->lane()->device());
  lane->part();
  const Deadline patience = Deadline::after(kPatience);
  while (!lane->is_alone() && !patience.passed()) std::this_thread::sleep_for(kPause);
  lane.reset();
  return true;
}

}  // namespace

Overseer& Overseer::instance() {
  static Overseer* const instance = new Overseer;
  return *instance;
}

Overseer::Overseer() {
  std::thread([this] { look(); }).detach();
  std::thread([this] { part(); }).detach();
}

void Overseer::look_after(LanePtr lane) {
  const std::lock_guard lock(mutex_);
  add(lanes_, std::move(lane));
  more_.notify_one();
}

void Overseer::see_off(LanePtr lane) {
  lane->leave();
  const std::lock_guard lock(mutex_);
  leaving_.push_back(lane);
  add(lanes_, std::move(lane));
  more_.notify_one();
}

void Overseer::look() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return !lanes_.empty(); });
    look_at_all(lock);
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

// A lane that was given again meanwhile stays: what it has under way was not seen.
void Overseer::look_at_all(std::unique_lock<std::mutex>& lock) {
  auto lanes = std::move(lanes_);
  lanes_.clear();
  for (LanePtr& lane : lanes) {
    lock.unlock();
    const bool goes_on = serves([&] { return lane->look(); });
    lock.lock();
    const auto leaving = std::find(leaving_.begin(), leaving_.end(), lane);
    if (goes_on) {
      add(lanes_, lane);
    } else if (leaving != leaving_.end()) {
      leaving_.erase(leaving);
      parted_.push_back(std::move(lane));  // whose end waits for the device
      parting_.notify_one();
    }
  }
}

void Overseer::part() {
  std::unique_lock lock(mutex_);
  for (;;) {
    parting_.wait(lock, [this] { return !parted_.empty(); });
    auto lanes = std::move(parted_);
    parted_.clear();
    lock.unlock();
    for (LanePtr& lane : lanes) serves([&] { return backend::part(std::move(lane)); });
    lanes.clear();
    lock.lock();
  }
}

}  // namespace ringdp::backend
