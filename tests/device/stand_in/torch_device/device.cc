// What torch's autograd asks of an accelerator: backward passes on the stand-in, once it is made one (stand_in.py).
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <deque>
#include <map>

#include "allocator.h"
#include "stand_in/machine.h"
#include "streams.h"

namespace stand_in {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(machine().devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_torch_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(torch_device()); }
};

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// Devices, streams and events of the stand-in as torch sees any device's.

c10::Device device_of(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

// As torch's guard for CUDA does it: resetting makes a context, too, on the device that was current before.
class SetAndReset {
 public:
  explicit SetAndReset(int device) { set_torch_device(device); }
  ~SetAndReset() { set_torch_device(before_); }
  SetAndReset(const SetAndReset&) = delete;
  SetAndReset& operator=(const SetAndReset&) = delete;

 private:
  const int before_ = torch_device();
};

std::atomic<int64_t> events_made{0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_of(exchange_torch_device(device.index()));
  }
  c10::Device getDevice() const override { return device_of(torch_device()); }
  void setDevice(c10::Device device) const override { set_torch_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_torch_device_if_used(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(machine().devices); }

  static c10::Stream stream_on(c10::Device device, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  static c10::Device with_index(c10::Device device) { return device.has_index() ? device : device_of(torch_device()); }
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
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const SetAndReset here(index);
    synchronize_device(index);
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    const SetAndReset here(s.device_index());
    if (*event == nullptr) {
      wait_for_copies_to_host();
      ++events_made;
      *event = new Event;
    }
    static_cast<Event*>(*event)->record(stream_of(s));
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event == nullptr) return;
    const SetAndReset here(s.device_index());
    static_cast<Event*>(event)->block(stream_of(s));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    need_context();
    return static_cast<Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    need_context();
    static_cast<Event*>(event)->synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    if (event == nullptr) return;
    const SetAndReset here(index);
    wait_for_copies_to_host();
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const override {
    record_use(memory, stream_of(s));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// What tests do to streams of the calling thread's current device by their numbers; stand_in/machine.cc has the rest.

Stream& numbered(int64_t number) { return stream_at(torch_device(), number); }

struct Held {
  std::mutex mutex;  // guards by_stream
  std::map<Stream*, std::deque<std::shared_ptr<Latch>>> by_stream;
};

Held& held() {
  static auto* const instance = new Held;
  return *instance;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

extern "C" {

// As torch.cuda.set_device.
void stand_in_use_device(int64_t device) { set_torch_device(static_cast<int>(device)); }
int64_t stand_in_used_device() { return torch_device(); }
// Its handle; null for the default stream.
Stream* stand_in_numbered(int64_t number) { return number == 0 ? nullptr : &numbered(number); }
void stand_in_use_stream(int64_t number) { current_streams.at(torch_device()) = number; }
int64_t stand_in_current_stream() { return current_streams.at(torch_device()); }
int64_t stand_in_events_made() { return events_made; }
bool stand_in_is_idle(int64_t number) { return numbered(number).idle(); }
void stand_in_synchronize(int64_t number) { numbered(number).synchronize(); }

// What is queued on the stream from now on waits for stand_in_go().
void stand_in_hold(int64_t number) {
  const auto latch = std::make_shared<Latch>();
  Stream& stream = numbered(number);
  const std::lock_guard lock(held().mutex);
  held().by_stream[&stream].push_back(latch);
  stream.push([latch] { latch->wait(); });
}

void stand_in_go(int64_t number) {
  const std::lock_guard lock(held().mutex);
  auto& latches = held().by_stream[&numbered(number)];
  latches.front()->open();
  latches.pop_front();
}
}
