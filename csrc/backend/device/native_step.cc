#include "backend/device/native_step.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringdp::backend {
namespace {

constexpr int64_t kSize = sizeof(float);

float* floats(const at::Tensor& tensor, int64_t element) { return static_cast<float*>(tensor.data_ptr()) + element; }

}  // namespace

NativeStep::NativeStep(std::shared_ptr<NativeLane> lane, at::Tensor gradients, double divisor, ShardStep step,
                       int rank, int world, std::chrono::milliseconds timeout)
    : NativeJob(std::move(lane), timeout),
      gradients_(std::move(gradients)),
      divisor_(divisor),
      step_(std::move(step)),
      rank_(rank),
      world_(world),
      part_(gradients_.numel() / world),
      pieces_(neighbourhood().cut_step(part_)) {}

void NativeStep::queue() {
  record({gradients_, step_.parameters});
  for (const ShardStep::Piece& piece : step_.pieces) record(piece.state);
  for (size_t i = 0; i < pieces_.elements.size(); ++i) run(pieces_.elements[i], i == 0);
  neighbourhood().poison(step_.parameters.data_ptr(), step_.parameters.numel() * kSize, stream());
}

// `elements`: of every rank's part.
void NativeStep::run(const Extent& elements, bool first) {
  bring(elements);
  launched(neighbourhood().launch_barrier(deadline_ns(), stream()));
  if (first) await_checked();
  for (const ShardStep::Piece& piece : step_.pieces) step(piece, elements);
  launched(neighbourhood().launch_barrier(deadline_ns(), stream()));
  if (gives()) fetch(elements);
}

int64_t NativeStep::window_at(int rank, const Extent& elements) const {
  return pieces_.input_at(rank, elements.count(), DType::kF32);
}

// What all ranks reach of this rank's gradients: a copy in its window.
void NativeStep::bring(const Extent& elements) const {
  for (int r = 0; r < world_; ++r) {
    copy(neighbourhood().window() + window_at(r, elements), floats(gradients_, r * part_ + elements.begin),
         elements.count() * kSize);
  }
}

void NativeStep::step(const ShardStep::Piece& piece, const Extent& elements) const {
  const int64_t begin = std::max(elements.begin, piece.offset);
  const int64_t end = std::min(elements.end, piece.offset + piece.state[0].numel());
  if (begin >= end) return;
  gpu::StepFacts facts;
  facts.at = window_at(rank_, elements) + (begin - elements.begin) * kSize;
  facts.gives = gives();
  facts.count = end - begin;
  facts.divisor = divisor_;
  facts.parameters = floats(step_.parameters, (gives() ? rank_ * part_ : 0) + begin);
  for (size_t k = 0; k < piece.state.size(); ++k) facts.state[k] = floats(piece.state[k], begin - piece.offset);
  facts.scalars = piece.scalars;
  neighbourhood().step(facts, stream());
}

// What other ranks have stepped.
void NativeStep::fetch(const Extent& elements) const {
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) continue;
    copy(floats(step_.parameters, r * part_ + elements.begin), neighbourhood().window() + window_at(r, elements),
         elements.count() * kSize);
  }
}

}  // namespace ringdp::backend
