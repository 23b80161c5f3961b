// The backend's reduce_scatter with a step inside, which only devices have.
#include <ATen/ATen.h>

#include "backend/backend.h"
#include "backend/device/native_step.h"
#include "backend/device/natives.h"
#include "backend/errors.h"
#include "backend/reduce_op.h"
#include "backend/tensors.h"

namespace ringdp::backend {

std::shared_ptr<NativeLane> Backend::lane_for_step(c10::Device device, std::string* why_not) {
  const std::shared_ptr<Lane> lane = device.is_cpu() ? nullptr : lanes_->of(device);
  if (!lane) {
    *why_not = "tensors on " + device.str() + " are not of a device that ringdp serves";
    return nullptr;
  }
  return guarded([&] {
    if (lane->is_capturing()) {
      lane->refuse_capture("the host counts a step and its settings, which no graph can replay; step outside the capture");
    }
    return natives_->lane_for_step(device, lane, options_->timeout, why_not);
  });
}

std::string Backend::why_no_step(c10::Device device) {
  std::string why_not;
  lane_for_step(device, &why_not);
  return why_not;
}

Backend::WorkPtr Backend::reduce_scatter_step(const at::Tensor& gradients, double divisor, ShardStep step,
                                              DigestsPtr digests) {
  const char* const name = "reduce_scatter_step";
  check_divisor(divisor, name);
  check(step, gradients, getSize());
  std::string why_not;
  const auto native = lane_for_step(gradients.device(), &why_not);
  if (!native) refuse(std::string(name) + ": " + why_not);
  comm::OpDesc desc;
  desc.what = plan::Collective::kReduceScatter;
  desc.place = comm::Place::kStepping;
  desc.dtype = checked_dtype(gradients, name);
  desc.op = ReduceOp::kAvg;
  desc.count = gradients.numel() / getSize();
  desc.divisor = divisor;
  desc.gives = step.parameters.numel() == gradients.numel();
  Tensors used{gradients, step.parameters};
  for (const ShardStep::Piece& piece : step.pieces) used.insert(used.end(), piece.state.begin(), piece.state.end());
  const auto make = [=, rank = getRank(), world = getSize(), timeout = options_->timeout] {
    return std::make_unique<NativeStep>(native, gradients, divisor, step, rank, world, timeout);
  };
  Call call{c10d::OpType::_REDUCE_SCATTER_BASE, "ringdp:reduce_scatter_step", desc, {}, {gradients},
            flat_result({step.parameters}), memory(), c10d::kUnsetTimeout, true, std::move(digests)};
  call.memory.stay_on(native, make, std::move(used));
  return run(std::move(call));
}

}  // namespace ringdp::backend
