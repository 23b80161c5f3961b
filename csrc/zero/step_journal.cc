#include "zero/step_journal.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

namespace ringdp::zero {
namespace {

constexpr int kBeginBits = 40;

int64_t word_of(int64_t piece, int64_t begin) { return (piece + 1) << kBeginBits | begin; }

void store(const at::Tensor& words, int64_t word, int64_t value) {
  std::atomic_ref<int64_t>(words.mutable_data_ptr<int64_t>()[word]).store(value, std::memory_order_seq_cst);
}

bool is_flat(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.device().is_cpu() && tensor.scalar_type() == dtype && tensor.dim() == 1 && tensor.is_contiguous();
}

}  // namespace

StepJournal::StepJournal(at::Tensor done, at::Tensor in_flight, at::Tensor undo)
    : done_(std::move(done)), in_flight_(std::move(in_flight)), undo_(std::move(undo)) {
  TORCH_CHECK(is_flat(done_, at::kLong) && is_flat(in_flight_, at::kLong) && in_flight_.numel() == 1 &&
                  is_flat(undo_, at::kFloat) && undo_.numel() == kJournalArrays * kJournalBlock,
              "step journal: tensors of another kind or length");
}

void StepJournal::before(int64_t piece, int64_t begin, const kernels::StepArrays& block) const {
  float* const undo = undo_.mutable_data_ptr<float>();
  const float* const arrays[kJournalArrays] = {block.parameters, block.state[0], block.state[1], block.state[2]};
  for (int64_t i = 0; i < kJournalArrays; ++i) {
    if (arrays[i] != nullptr) std::copy_n(arrays[i], block.count, undo + i * kJournalBlock);
  }
  store(in_flight_, 0, word_of(piece, begin));
}

void StepJournal::after(int64_t piece, int64_t end) const { store(done_, piece, end); }

void StepJournal::undo(int64_t piece, const std::vector<std::optional<at::Tensor>>& arrays) const {
  TORCH_CHECK(piece >= 0 && piece < pieces() && arrays.size() <= kJournalArrays, "step journal: piece ", piece, " of ",
              pieces(), ", ", arrays.size(), " arrays");
  const int64_t begin = done_.const_data_ptr<int64_t>()[piece];
  if (*in_flight_.const_data_ptr<int64_t>() != word_of(piece, begin)) return;
  const float* old = undo_.const_data_ptr<float>();
  for (const auto& array : arrays) {
    if (array) {
      TORCH_CHECK(is_flat(*array, at::kFloat) && array->numel() > begin,
                  "step journal: another array than was stepped");
      std::copy_n(old, std::min(kJournalBlock, array->numel() - begin), array->mutable_data_ptr<float>() + begin);
    }
    old += kJournalBlock;
  }
}

}  // namespace ringdp::zero
