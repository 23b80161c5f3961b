// What torch does with tensors of the stand-in: memory and copies here, in the order of streams; what is not written
// here runs on the CPU behind the current stream, and blocks the caller.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.h"
#include "streams.h"

namespace stand_in {
namespace {

c10::Allocator& allocator() {
  static auto* const instance = new Allocator;
  return *instance;
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_generic(size, &allocator(), kKeys, dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
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

Stream& stream_for(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

// `later` waits for all that `earlier` has.
void put_behind(Stream& earlier, Stream& later) {
  if (&earlier == &later) return;
  Event event;
  event.record(earlier);
  event.block(later);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Stream& stream = stream_for(from.device().is_cpu() ? to : from);
  Stream& other = stream_for(to.device().is_cpu() ? from : to);
  put_behind(other, stream);
  stream.push([source = on_host(from), target = on_host(to)]() mutable { target.copy_(source); });
  put_behind(stream, other);
  if (!non_blocking && to.device().is_cpu()) {
    const CopyToHost here;
    stream.synchronize();
  } else if (!non_blocking) {
    stream.synchronize();
  }
  return to;
}

// Of results that on_cpu() brings back; they have their size.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "the stand-in resizes nothing");
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  stream_for(tensor).push([target = on_host(tensor), value]() mutable { target.fill_(value); });
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
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

}  // namespace
}  // namespace stand_in
