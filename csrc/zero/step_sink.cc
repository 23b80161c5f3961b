#include "zero/step_sink.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

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
      if (first < end) placed.steps->step(placed.piece, first - placed.offset, end - first, gradients + (first - begin));
    }
  }

 private:
  const std::vector<PlacedPiece> pieces_;
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

}  // namespace ringdp::zero
