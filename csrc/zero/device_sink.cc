#include "zero/device_sink.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backend/shard_step.h"
#include "kernels/step_kernel.h"

namespace ringdp::zero {
namespace {

class DeviceSink final : public reducer::ShardSink {
 public:
  explicit DeviceSink(backend::ShardStep step) : step_(std::move(step)) {}

  void take(int64_t, int64_t, const void*) override {
    TORCH_INTERNAL_ASSERT(false, "a step on a device was given means on the host");
  }
  const backend::ShardStep* on_device() const override { return &step_; }
  void begun(c10::intrusive_ptr<c10d::Work> work) override { work_ = std::move(work); }
  void wait() override {
    if (work_) work_->wait();
  }

 private:
  const backend::ShardStep step_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace

std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePiece>& pieces) {
  backend::ShardStep step{std::move(parameters), {}};
  for (const DevicePiece& piece : pieces) {
    step.pieces.push_back({piece.offset, piece.state, kernels::scalars_of(piece.settings, piece.number)});
  }
  std::sort(step.pieces.begin(), step.pieces.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return std::make_shared<DeviceSink>(std::move(step));
}

}  // namespace ringdp::zero
