// The contiguous memory that one call works on, and how its results get back to the tensors.
//
// CPU tensors are used in place or copied at once. Those of a device are copied to pinned memory, in stream order, when
// the call starts, unless the device runs the collective itself (device/torch/device_collectives.h). A call's tensors
// are on one device.
#pragma once
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "device/torch/device_collectives.h"

namespace ringdp::backend {

class CallMemory {
 public:
  explicit CallMemory(DeviceCollectives& devices) : devices_(&devices) {}

  // Before anything is read or written: the call runs on its device. `used`: its tensors, unless it is a plain
  // collective.
  void stay_on(DeviceCallPtr call, std::vector<at::Tensor> used = {});

  // Contiguous memory that holds the elements of `from`, or whose contents are later written to `to`, or both.
  at::Tensor read(const at::Tensor& from);
  // Does not overlap memory that was read so far, except for `in_place`, a result of read().
  at::Tensor write(const at::Tensor& to, const char* call, const at::Tensor& in_place = {});
  at::Tensor update(const at::Tensor& from, const at::Tensor& to, const char* call);
  // Once results are in their tensors, in the order of the calls; `action` writes to these, too.
  void then(std::function<void()> action, const std::vector<at::Tensor>& written);
  void belong_to(c10::Device device);  // for a call without tensors

  // Exactly one of them, once: how a call on the CPU ends (empty where its results are in their tensors then), or the
  // Work of a call on a device. `source`: of a receive.
  std::function<void()> epilogue() const;
  DeviceCall::Started start(WorkFacts facts, std::optional<int> source) const;
  // To be held from start() to the call's end on its streams; of nothing unless the device runs it.
  std::unique_lock<std::mutex> order() const;

  bool is_on_device() const { return call_ != nullptr; }
  std::vector<at::Tensor> on_host() const;  // memory that a collective of the CPU uses

 private:
  void enter(c10::Device device);
  bool is_staged() const { return call_ && call_->is_staged(); }
  std::function<void()> after() const;         // all actions of then()
  at::Tensor fetched(const at::Tensor& from);  // pinned, for the elements of a device's tensor

  DeviceCollectives* devices_;
  DeviceCallPtr call_;  // null: of the CPU, or no tensor yet
  std::optional<c10::Device> device_;
  std::vector<at::Tensor> read_, written_;
  std::vector<DeviceTensors::Copy> inputs_, results_;  // no inputs on the CPU: they are there
  std::vector<std::function<void()>> actions_;
};

}  // namespace ringdp::backend
