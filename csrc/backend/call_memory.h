// Where the tensors of one call lie while it runs, contiguous host memory; and the way back from there.
//
// Tensors of the CPU are used where they lie or copied on the spot; those of a device get pinned memory, to which they
// are copied in the order of streams (device/device_call.h) once the call starts, or stay there when the device runs the
// collective (device/native_call.h). A call's tensors are on one device.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/device/device_call.h"
#include "backend/device/native_question.h"

namespace ringdp::backend {

class CallMemory {
 public:
  explicit CallMemory(Lanes& lanes) : lanes_(&lanes) {}

  // Before anything is read or written: the call runs on its device.
  void stay_on(std::shared_ptr<NativeLane> native, const NativeQuestion& question);
  // The same for what is no plain collective: `make` says how it runs, `used` are its tensors.
  using Make = std::function<std::unique_ptr<CallOnDevice>()>;
  void stay_on(std::shared_ptr<NativeLane> native, Make make, std::vector<at::Tensor> used);

  // Contiguous memory: that holds what is in `from`; whose contents `to` gets; both.
  at::Tensor read(const at::Tensor& from);
  // Apart from all memory that was read so far; only `in_place`, a result of read(), may be the same.
  at::Tensor write(const at::Tensor& to, const char* call, const at::Tensor& in_place = {});
  at::Tensor update(const at::Tensor& from, const at::Tensor& to, const char* call);
  // Once results are in their tensors, in the order of the calls; `action` writes to these, too.
  void then(std::function<void()> action, const std::vector<at::Tensor>& written);
  void belong_to(c10::Device device);  // for a call without tensors

  // One of both, once: how a call on the CPU ends, or a call on a device under way. `source`: of a receive.
  std::function<void()> epilogue() const;
  std::unique_ptr<CallOnDevice> start(std::optional<int> source) const;
  // To be held from start() to the call's end on its streams; of nothing unless the device runs it.
  std::unique_lock<std::mutex> order() const;

  bool is_on_device() const { return lane_ != nullptr; }
  std::function<void()> after() const;           // what then() was told
  std::vector<at::Tensor> on_host() const;       // memory that the collective uses
  std::vector<at::Tensor> on_device() const;     // tensors that the device uses

 private:
  void enter(c10::Device device);
  bool is_staged() const { return lane_ && !native_; }
  std::unique_ptr<CallOnDevice> start_staged(std::optional<int> source) const;
  at::Tensor fetched(const at::Tensor& from);    // pinned, for the elements of a device's tensor

  Lanes* lanes_;
  std::shared_ptr<Lane> lane_;  // null: of the CPU, or no tensor yet
  std::shared_ptr<NativeLane> native_;  // null: staged
  NativeQuestion question_;
  Make make_;  // null: a collective of what was read and written
  std::optional<c10::Device> device_;
  std::vector<at::Tensor> read_, written_;
  std::vector<DeviceCall::Copy> inputs_, results_;  // no inputs on the CPU: they are there
  std::vector<std::function<void()>> actions_;
};

}  // namespace ringdp::backend
