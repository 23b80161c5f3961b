#include "reducer/readiness.h"

namespace ringdp::reducer {

void Readiness::begin() {
  arrived_.assign(arrived_.size(), false);
  firing_order_.clear();
  left_ = firings_;
}

bool Readiness::mark(size_t index) {
  if (arrived_[index]) return false;
  arrived_[index] = true;
  return true;
}

std::vector<size_t> Readiness::missing() const {
  std::vector<size_t> indices;
  for (size_t index = 0; index < arrived_.size(); ++index) {
    if (!arrived_[index]) indices.push_back(index);
  }
  return indices;
}

// A gradient is complete when its hook has fired for the last time.
std::vector<size_t> Readiness::order() const {
  std::vector<bool> seen(arrived_.size(), false);
  std::vector<size_t> backwards;
  for (auto index = firing_order_.rbegin(); index != firing_order_.rend(); ++index) {
    if (!seen[*index]) backwards.push_back(*index);
    seen[*index] = true;
  }
  std::reverse(backwards.begin(), backwards.end());
  return backwards;
}

Readiness::Firing Readiness::count_down(size_t index) {
  if (left_[index] == 0) return Firing::kTooMany;
  return --left_[index] == 0 ? Firing::kLast : Firing::kNotYet;
}

}  // namespace ringdp::reducer
