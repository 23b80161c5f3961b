#include "backend/device/lane.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <thread>

#include "backend/device/served.h"
#include "backend/errors.h"
#include "base/deadline.h"
#include "base/log.h"

namespace ringdp::backend {

Lane::Lane(c10::Device device, DeviceCore& core)
    : device_(device),
      core_(core),
      impl_(device.type()),
      inputs_(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      results_(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      cache_(core) {}

Lane::~Lane() {
  const Deadline patience = Deadline::after(std::chrono::seconds(1));
  try {
    for (let_go(); !held_.empty() && !patience.passed(); let_go()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {  // the device's context is broken, and whoever broke it is told so elsewhere
    log_line(LogLevel::kDebug, "ringdp", std::string("pinned memory is kept: ") + error.what());
  }
  if (!held_.empty()) new std::list<Held>(std::move(held_));
}

void Lane::refuse_capture(const std::string& why) const {
  refuse("the current stream of " + device_.str() + " is being captured: " + why);
}

void Lane::record(const at::Tensor& tensor, const c10::Stream& stream) const {
  impl_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::Stream Lane::results_from(int source) {
  const std::lock_guard lock(mutex_);
  const auto known = by_source_.find(source);
  if (known != by_source_.end()) return known->second;
  return by_source_.emplace(source, impl_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)).first->second;
}

at::Tensor Lane::pinned(at::IntArrayRef sizes, at::ScalarType dtype) {
  let_go();
  const c10::DeviceGuard device(device_);
  return cache_.empty(sizes, dtype);
}

void Lane::hold(std::shared_ptr<c10::Event> passed, std::vector<at::Tensor> pinned) {
  const std::lock_guard lock(mutex_);
  held_.push_back({std::move(passed), std::move(pinned)});
}

void Lane::let_go() {
  const std::lock_guard lock(mutex_);
  held_.remove_if([](const Held& held) { return held.passed->query(); });
  // Freeing waits for the device, and so perhaps for the host to end what is under way.
  if (held_.empty()) cache_.trim();
}

std::shared_ptr<Lane> Lanes::of(c10::Device device) {
  DeviceCore* const core = core_of(device.type());
  if (core == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->device() == device) return lane;
  }
  lanes_.push_back(std::make_shared<Lane>(device, *core));
  return lanes_.back();
}

}  // namespace ringdp::backend
