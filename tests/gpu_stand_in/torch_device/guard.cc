// Devices, streams and events of the stand-in as torch sees any device's.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocator.h"
#include "streams.h"

namespace stand_in {
namespace {

c10::Device device_of(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_of(current_device()); }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(machine().devices); }

  static c10::Stream stream_on(c10::Device device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  static c10::Device with_index(c10::Device device) {
    return device.has_index() ? device : device_of(current_device());
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device its = with_index(device);
    return stream_on(its, current_streams.at(its.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_on(with_index(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_on(with_index(device), next_of_pool());
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream_on(s.device(), std::exchange(current_streams.at(s.device_index()), s.id()));
  }
  // As CUDA's: null for the default stream, which is that of the current device.
  void* getStreamNativeHandle(const c10::Stream s) const override { return s.id() == 0 ? nullptr : &stream_of(s); }
  void synchronizeStream(const c10::Stream& s) const override { stream_of(s).synchronize(); }
  bool queryStream(const c10::Stream& s) const override { return stream_of(s).idle(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize_device(index); }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->record(stream_of(s));
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event != nullptr) static_cast<Event*>(event)->block(stream_of(s));
  }
  bool queryEvent(void* event) const override { return event == nullptr || static_cast<Event*>(event)->query(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const override {
    record_use(memory, stream_of(s));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace stand_in
