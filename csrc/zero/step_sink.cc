#include "zero/step_sink.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backend/shard_step.h"
#include "kernels/step.h"

namespace ringdp::zero {
namespace {

int64_t length_of(const PlacedPiece& placed) { return placed.steps->parameters()[placed.piece].numel(); }

class StepSink final : public reducer::ShardSink {
 public:
  explicit StepSink(std::vector<PlacedPiece> pieces) : pieces_(std::move(pieces)) {}

  void take(int64_t begin, int64_t count, const void* means) override {
    const auto* const gradients = static_cast<const float*>(means);
    for (const PlacedPiece& placed : pieces_) {
      const int64_t first = std::max(begin, placed.offset);
      const int64_t end = std::min(begin + count, placed.offset + length_of(placed));
      if (first < end) {
        placed.steps->step(placed.piece, first - placed.offset, end - first, gradients + (first - begin));
      }
    }
  }

 private:
  const std::vector<PlacedPiece> pieces_;
};

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

std::shared_ptr<reducer::ShardSink> step_sink(std::vector<PlacedPiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  int64_t end = 0;
  for (const PlacedPiece& placed : pieces) {
    TORCH_CHECK(placed.piece < placed.steps->parameters().size(), "step sink: piece ", placed.piece, " of ",
                placed.steps->parameters().size());
    TORCH_CHECK(placed.offset >= end, "step sink: a piece at ", placed.offset, " overlaps one that ends at ", end);
    end = placed.offset + length_of(placed);
  }
  return std::make_shared<StepSink>(std::move(pieces));
}

std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePiece>& pieces) {
  backend::ShardStep step{std::move(parameters), {}};
  for (const DevicePiece& piece : pieces) {
    step.pieces.push_back({piece.offset, piece.state, kernels::scalars_of(piece.settings, piece.step_number)});
  }
  std::sort(step.pieces.begin(), step.pieces.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return std::make_shared<DeviceSink>(std::move(step));
}

}  // namespace ringdp::zero
