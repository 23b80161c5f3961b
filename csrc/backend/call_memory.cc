#include "backend/call_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "backend/errors.h"
#include "backend/tensors.h"

namespace ringdp::backend {

void CallMemory::enter(c10::Device device) {
  if (device_ && *device_ != device) {
    refuse("the tensors of one call are on " + device_->str() + " and on " + device.str() +
           ": move them to one device");
  }
  device_ = device;
  if (!call_ && !device.is_cpu()) call_ = devices_->stage(device);
}

void CallMemory::stay_on(DeviceCallPtr call, std::vector<at::Tensor> used) {
  call_ = std::move(call);
  read_ = std::move(used);
  enter(call_->device());
}

at::Tensor CallMemory::read(const at::Tensor& from) {
  enter(from.device());
  read_.push_back(is_staged() ? fetched(from) : flat(from));
  return read_.back();
}

at::Tensor CallMemory::fetched(const at::Tensor& from) {
  at::Tensor memory = call_->pinned(from.sizes(), from.scalar_type());
  inputs_.push_back({memory, from});
  return memory;
}

at::Tensor CallMemory::write(const at::Tensor& to, const char* call, const at::Tensor& in_place) {
  enter(to.device());
  check_writable(to, call);
  at::Tensor memory = is_staged() ? call_->pinned(to.sizes(), to.scalar_type()) : flat_target(to, call);
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
  const auto is_there = [](const auto& result) { return result.memory.is_same(result.tensor); };
  if (actions_.empty() && std::all_of(results_.begin(), results_.end(), is_there)) return {};
  return [results = results_, after = after()] {
    for (const auto& result : results) copy_back(result.memory, result.tensor);
    after();
  };
}

std::unique_lock<std::mutex> CallMemory::order() const {
  return call_ ? call_->order() : std::unique_lock<std::mutex>();
}

DeviceCall::Started CallMemory::start(WorkFacts facts, std::optional<int> source) const {
  return call_->start(std::move(facts), {read_, inputs_, results_, written_, after()}, source);
}

std::vector<at::Tensor> CallMemory::on_host() const {
  std::vector<at::Tensor> tensors = read_;
  for (const auto& result : results_) tensors.push_back(result.memory);
  return tensors;
}

}  // namespace ringdp::backend
