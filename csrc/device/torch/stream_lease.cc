#include "device/torch/stream_lease.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ringdp::backend {
namespace {

struct Unused {
  std::mutex mutex;                  // guards streams
  std::vector<c10::Stream> streams;  // of all devices
};

Unused& unused() {
  static Unused* const instance = new Unused;
  return *instance;
}

// The number of a stream that torch has not made is its address (c10/cuda/CUDAStream.cpp, "External streams").
c10::Stream new_stream(c10::Device device, DeviceCore& core) {
  void* const native = core.new_stream(device.index());
  const c10::Stream stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(native));
  if (c10::impl::VirtualGuardImpl(device.type()).getStreamNativeHandle(stream) == native) return stream;
  throw Error(ErrorKind::kInternal,
              "this release of torch numbers streams of others in a way that ringdp does not know");
}

c10::Stream lent(c10::Device device, DeviceCore& core) {
  {
    const std::lock_guard lock(unused().mutex);
    auto& streams = unused().streams;
    const auto found = std::find_if(streams.begin(), streams.end(), [&](auto& s) { return s.device() == device; });
    if (found != streams.end()) {
      const c10::Stream stream = *found;
      streams.erase(found);
      return stream;
    }
  }
  return new_stream(device, core);
}

}  // namespace

StreamLease::StreamLease(c10::Device device, DeviceCore& core) : core_(core), stream_(lent(device, core)) {}

StreamLease::~StreamLease() {
  if (!is_idle()) return;
  const std::lock_guard lock(unused().mutex);
  unused().streams.push_back(stream_);
}

bool StreamLease::is_idle() const noexcept {
  try {
    const QuietDeviceGuard here(stream_.device());
    const BesideCaptures relaxed(core_);
    return stream_.query();
  } catch (const std::exception& error) {  // it is being captured, or the device's context is broken
    log_line(LogLevel::kDebug, "ringdp", std::string("a stream is not used again: ") + error.what());
    return false;
  }
}

}  // namespace ringdp::backend
