#include "backend/call_memory.h"

#include <ATen/ATen.h>

#include "backend/device/native_call.h"
#include "backend/errors.h"
#include "backend/tensors.h"

namespace ringdp::backend {

void CallMemory::enter(c10::Device device) {
  if (device_ && *device_ != device) {
    refuse("the tensors of one call are on " + device_->str() + " and on " + device.str() +
           ": move them to one device");
  }
  device_ = device;
  if (lane_ || device.is_cpu()) return;
  lane_ = lanes_->of(device);
  if (is_staged() && lane_->is_capturing()) {
    lane_->refuse_capture("this call goes through host memory, which no graph can replay; call it outside the capture");
  }
}

void CallMemory::stay_on(std::shared_ptr<NativeLane> native, const NativeQuestion& question) {
  native_ = std::move(native);
  question_ = question;
  enter(native_->lane()->device());
}

void CallMemory::stay_on(std::shared_ptr<NativeLane> native, Make make, std::vector<at::Tensor> used) {
  enter(native->lane()->device());
  native_ = std::move(native);
  make_ = std::move(make);
  read_ = std::move(used);
}

at::Tensor CallMemory::read(const at::Tensor& from) {
  enter(from.device());
  read_.push_back(is_staged() ? fetched(from) : flat(from));
  return read_.back();
}

at::Tensor CallMemory::fetched(const at::Tensor& from) {
  at::Tensor memory = lane_->pinned(from.sizes(), from.scalar_type());
  inputs_.push_back({memory, from});
  return memory;
}

at::Tensor CallMemory::write(const at::Tensor& to, const char* call, const at::Tensor& in_place) {
  enter(to.device());
  check_writable(to, call);
  at::Tensor memory = is_staged() ? lane_->pinned(to.sizes(), to.scalar_type()) : flat_target(to, call);
  for (const at::Tensor& other : read_) {
    const bool may_be_same = other.is_same(in_place) && other.const_data_ptr() == memory.const_data_ptr();
    if (!may_be_same && overlap(other, memory)) memory = at::empty_like(memory);
  }
  results_.push_back({memory, to});
  return memory;
}

at::Tensor CallMemory::update(const at::Tensor& from, const at::Tensor& to, const char* call) {
  check_writable(to, call);
  const at::Tensor memory = read(from);
  results_.push_back({memory, to});
  return memory;
}

void CallMemory::then(std::function<void()> action, const std::vector<at::Tensor>& written) {
  actions_.push_back(std::move(action));
  written_.insert(written_.end(), written.begin(), written.end());
}

void CallMemory::belong_to(c10::Device device) { enter(device); }

std::function<void()> CallMemory::after() const {
  return [actions = actions_] {
    for (const auto& action : actions) action();
  };
}

std::function<void()> CallMemory::epilogue() const {
  return [results = results_, after = after()] {
    for (const auto& result : results) copy_back(result.memory, result.tensor);
    after();
  };
}

std::unique_lock<std::mutex> CallMemory::order() const {
  return native_ ? std::unique_lock(native_->order()) : std::unique_lock<std::mutex>();
}

std::unique_ptr<CallOnDevice> CallMemory::start(std::optional<int> source) const {
  if (!native_) return start_staged(source);
  if (make_) return make_();
  NativeCall::Tensors tensors;
  tensors.inputs = read_;
  tensors.written = written_;
  for (const auto& result : results_) {
    tensors.outputs.push_back(result.memory);
    tensors.results.push_back({result.memory, result.tensor});
  }
  return std::make_unique<NativeCall>(native_, question_, std::move(tensors));
}

std::unique_ptr<CallOnDevice> CallMemory::start_staged(std::optional<int> source) const {
  const c10::Stream& results = source ? lane_->results_from(*source) : lane_->results();
  auto call = std::make_unique<DeviceCall>(lane_, results_.empty() ? lane_->inputs() : results);
  for (const at::Tensor& tensor : written_) lane_->record(tensor, call->stream());
  call->bring(inputs_, results_);
  return call;
}

std::vector<at::Tensor> CallMemory::on_host() const {
  if (native_) return {};
  std::vector<at::Tensor> tensors = read_;
  for (const auto& result : results_) tensors.push_back(result.memory);
  return tensors;
}

std::vector<at::Tensor> CallMemory::on_device() const {
  std::vector<at::Tensor> tensors = written_;
  if (native_) tensors.insert(tensors.end(), read_.begin(), read_.end());
  for (const auto* copies : {&inputs_, &results_}) {
    for (const auto& copy : *copies) tensors.push_back(copy.tensor);
  }
  return tensors;
}

}  // namespace ringdp::backend
