// A device for tests in torch's PrivateUse1 slot: its memory is the host's, its streams are host threads (fake_streams.h).
// What is not written here runs on the CPU behind the current stream, and blocks the caller.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "fake_core.h"
#include "fake_memory.h"

namespace fake {
namespace {

using Event = std::shared_ptr<Latch>;

c10::Device device() { return {c10::kPrivateUse1, 0}; }
c10::Stream torch_stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }
Queue& queue_of(const c10::Stream& s) { return stream(s.id()).queue; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return torch_stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return torch_stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<int> next{0};
    return torch_stream(8 + next++ % (kStreams - 8));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return torch_stream(std::exchange(current_stream, s.id()));
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return &stream(s.id()); }
  void synchronizeStream(const c10::Stream& s) const override { queue_of(s).synchronize(); }
  bool queryStream(const c10::Stream& s) const override { return queue_of(s).idle(); }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    const auto latch = std::make_shared<Latch>();
    *static_cast<Event*>(*event) = latch;
    queue_of(s).push([latch] { latch->open(); });
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event != nullptr) queue_of(s).push([latch = *static_cast<Event*>(event)] { latch->wait(); });
  }
  bool queryEvent(void* event) const override { return event == nullptr || (*static_cast<Event*>(event))->is_open(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) (*static_cast<Event*>(event))->wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const override { fake::record(memory, s.id()); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

c10::Allocator& allocator() {
  static auto* const instance = new Allocator;
  return *instance;
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::Tensor(at::detail::empty_generic(size, &allocator(), kKeys, dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, dtype.value_or(at::kFloat)));
}

// The same memory as a CPU tensor; keeps it.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  const auto keep = [storage = tensor.storage()](void*) {};
  at::Tensor host = at::from_blob(tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(), keep,
                                  tensor.options().device(at::kCPU));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

void run_in_order(Job job) { stream(current_stream).queue.push(std::move(job)); }

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  run_in_order([source = on_host(from), target = on_host(to)]() mutable { target.copy_(source); });
  if (!non_blocking) stream(current_stream).queue.synchronize();
  return to;
}

// Of results that on_cpu() brings back; they have their size.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "the fake device resizes nothing");
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  run_in_order([target = on_host(tensor), value]() mutable { target.fill_(value); });
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("fill_.Scalar", &fill);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace
}  // namespace fake

extern "C" {

ringdp::backend::DeviceCore* fake_core() { return &fake::core(); }
size_t fake_pinned_bytes() { return fake::core().pinned_bytes(); }
void fake_use_stream(int64_t id) { fake::current_stream = id; }
int64_t fake_current_stream() { return fake::current_stream; }
bool fake_is_idle(int64_t id) { return fake::stream(id).queue.idle(); }
void fake_synchronize(int64_t id) { fake::stream(id).queue.synchronize(); }
void fake_set_capturing(int64_t id, bool capturing) { fake::stream(id).capturing = capturing; }

// What is queued on the stream from now on waits for fake_go().
void fake_hold(int64_t id) {
  const auto latch = std::make_shared<fake::Latch>();
  fake::Stream& held = fake::stream(id);
  const std::lock_guard lock(held.mutex);
  held.held.push_back(latch);
  held.queue.push([latch] { latch->wait(); });
}

void fake_go(int64_t id) {
  fake::Stream& held = fake::stream(id);
  const std::lock_guard lock(held.mutex);
  held.held.front()->open();
  held.held.pop_front();
}
}
