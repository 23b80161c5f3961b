#include "reducer/parameter_sample.h"

#include <algorithm>
#include <utility>

#include "kernels/checksum.h"
#include "reducer/drift.h"
#include "trace/events.h"

namespace ringdp::reducer {
namespace {

constexpr int64_t kAlignment = 64;  // of where a part begins

}  // namespace

ParameterSample::ParameterSample(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parameters_) {
    bytes += static_cast<int64_t>(parameter.nbytes());
    ends_.push_back(bytes);
  }
  const auto fitting = static_cast<uint64_t>(bytes / kLeastBytes);
  parts_ = fitting < 2 ? 1 : std::min(kMostParts, (fitting - 1) | 1);
}

int64_t ParameterSample::begin_of(uint64_t number) const {
  const int64_t bytes = ends_.back();
  if (number == parts_) return bytes;
  return bytes / kAlignment * static_cast<int64_t>(number) / static_cast<int64_t>(parts_) * kAlignment;
}

ParameterSample::Place ParameterSample::place_of(int64_t byte) const {
  const size_t index = std::upper_bound(ends_.begin(), ends_.end(), byte) - ends_.begin();
  const int64_t begin = index > 0 ? ends_[index - 1] : 0;
  return {index, (byte - begin) / static_cast<int64_t>(parameters_[index].itemsize())};
}

ParameterSample::Part ParameterSample::part(uint64_t number) const {
  return {place_of(begin_of(number)), place_of(begin_of(number + 1) - 1)};
}

std::optional<uint64_t> ParameterSample::checksum_of(uint64_t number) const {
  const int64_t begin = begin_of(number), end = begin_of(number + 1);
  uint64_t sum = 1;
  for (size_t index = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin(); index < parameters_.size();
       ++index) {
    const at::Tensor& parameter = parameters_[index];
    const auto size = static_cast<int64_t>(parameter.nbytes());
    const int64_t first = index > 0 ? ends_[index - 1] : 0;
    if (first >= end) break;
    if (first + size != ends_[index] || !parameter.is_contiguous() || !parameter.is_cpu()) return std::nullopt;
    const auto held = static_cast<int64_t>(parameter.storage().nbytes());
    if (held < size + parameter.storage_offset() * static_cast<int64_t>(parameter.itemsize())) return std::nullopt;
    const int64_t from = std::max(begin, first), to = std::min(end, first + size);
    const auto* const bytes = static_cast<const char*>(parameter.const_data_ptr());
    sum = kernels::combine(sum, kernels::checksum(bytes + (from - first), to - from));
  }
  return sum;
}

uint32_t ParameterSample::word() {
  const uint32_t turn = word_without_checksum();
  if (stride_ == 0 || turn_ % stride_ != 0) return turn;
  const int64_t began = trace::now_ns();
  std::optional<uint64_t> sum;
  try {
    sum = checksum_of(turn_ % parts_);
  } catch (const c10::Error&) {  // a parameter that cannot be read now: the training goes on
  }
  spent_ns_ += trace::now_ns() - began;
  if (!sum) return turn;
  const uint32_t low = *sum & ((1u << kSumBits) - 1);
  return turn | (low != 0 ? low : 1);
}

void ParameterSample::compare(const std::vector<uint32_t>& words, int64_t pass) {
  const uint32_t own = word_without_checksum() >> kSumBits;
  uint32_t furthest = 0;
  bool same_turn = true;
  std::vector<uint64_t> sums;
  for (const uint32_t word : words) {
    const uint32_t turn = word >> kSumBits;
    furthest = std::max(furthest, turn);
    same_turn &= turn == 0 || turn == own;
    sums.push_back(turn == own ? word & ((1u << kSumBits) - 1) : 0);
  }
  const auto voters = static_cast<size_t>(sums.size() - std::count(sums.begin(), sums.end(), uint64_t{0}));
  if (voters > 1) ++compared_;
  std::vector<int> odd = odd_ranks(sums);
  if (!odd.empty()) {
    const bool has_majority = odd.size() < voters;
    if (found_.size() == kKept) found_.erase(found_.begin());
    found_.push_back({pass, turn_ % parts_, std::move(odd), has_majority});
  }
  turn_ = same_turn ? turn_ + 1 : furthest;  // words count turns from 1
}

std::vector<ParameterSample::Found> ParameterSample::take_found() { return std::exchange(found_, {}); }

}  // namespace ringdp::reducer
