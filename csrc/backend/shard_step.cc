#include "backend/shard_step.h"

#include <ATen/ATen.h>

#include <string>

#include "backend/backend.h"
#include "backend/errors.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

constexpr int64_t kPackBytes = 16;  // what a thread of a device reads at a time
constexpr int64_t kPack = kPackBytes / static_cast<int64_t>(sizeof(float));

void check_floats(const at::Tensor& tensor, const std::string& what, const c10::Device& device) {
  const bool fits = tensor.defined() && tensor.dim() == 1 && tensor.is_contiguous() &&
                    tensor.scalar_type() == at::kFloat && tensor.device() == device;
  if (!fits) refuse("step: " + what + " must be a flat contiguous float32 tensor on " + device.str());
}

// As packs of the device begin.
void check_begin(const at::Tensor& tensor, const std::string& what) {
  if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kPackBytes == 0) return;
  refuse("step: " + what + " must begin at a multiple of 16 bytes: clone it");
}

}  // namespace

void check(const ShardStep& step, const at::Tensor& gradients, int world) {
  const c10::Device device = gradients.device();
  const int64_t whole = gradients.numel(), part = whole / world;
  if (whole % (world * kPack) != 0) {
    refuse("step: " + std::to_string(whole) + " gradients cannot be divided into " + std::to_string(world) +
           " equal parts of whole packs of 4");
  }
  check_floats(step.parameters, "parameters", device);
  check_begin(step.parameters, "parameters");
  if (step.parameters.numel() != whole && step.parameters.numel() != part) {
    refuse("step: " + std::to_string(step.parameters.numel()) + " parameters; a bucket of " + std::to_string(whole) +
           " gradients has as many, or " + std::to_string(part) + " of this rank's part");
  }
  check_floats(gradients, "gradients", device);
  int64_t end = 0;
  for (const ShardStep::Piece& piece : step.pieces) {
    const std::string where = "the piece at " + std::to_string(piece.offset);
    const size_t states = piece.scalars.amsgrad ? 3 : 2;
    if (piece.state.size() != states) refuse("step: " + where + " must have " + std::to_string(states) + " states");
    const int64_t count = piece.state[0].numel();
    for (const at::Tensor& state : piece.state) {
      check_floats(state, "a state of " + where, device);
      check_begin(state, "a state of " + where);
      if (state.numel() != count) refuse("step: the states of " + where + " have different lengths");
    }
    if (piece.offset % kPack != 0 || piece.offset < end || piece.offset + count > part) {
      refuse("step: " + where + " of " + std::to_string(count) + " elements must begin at a multiple of 4 from " +
             std::to_string(end) + " on and end at " + std::to_string(part));
    }
    end = piece.offset + count;
  }
}

// The backend's reduce_scatter with a step inside, which only devices have.

std::string Backend::why_no_step(c10::Device device) {
  return guarded([&] { return devices_->why_no_step(device, options_->timeout); });
}

Backend::WorkPtr Backend::reduce_scatter_step(const at::Tensor& gradients, double divisor, ShardStep step,
                                              DigestsPtr digests) {
  const char* const name = "reduce_scatter_step";
  check_divisor(divisor, name);
  check(step, gradients, getSize());
  std::string why_not;
  DeviceCallPtr on_device =
      guarded([&] { return devices_->try_step(gradients, divisor, step, options_->timeout, &why_not); });
  if (!on_device) refuse(std::string(name) + ": " + why_not);
  Call call = make_call(c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:reduce_scatter_step", Collective::kReduceScatter,
                        {gradients}, flat_result({step.parameters}), c10d::ReduceScatterOptions());
  call.desc.place = comm::Place::kStepping;
  call.desc.dtype = checked_dtype(gradients, name);
  call.desc.op = ReduceOp::kAvg;
  call.desc.count = gradients.numel() / getSize();
  call.desc.divisor = divisor;
  call.desc.gives = step.parameters.numel() == gradients.numel();
  call.digests = std::move(digests);
  Tensors used{gradients, step.parameters};
  for (const ShardStep::Piece& piece : step.pieces) used.insert(used.end(), piece.state.begin(), piece.state.end());
  call.memory.stay_on(std::move(on_device), std::move(used));
  return run(std::move(call));
}

}  // namespace ringdp::backend
