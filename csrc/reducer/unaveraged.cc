#include "reducer/unaveraged.h"

#include <algorithm>

namespace ringdp::reducer {

void Unaveraged::add(size_t index, const at::Tensor& parameter) {
  any_ = true;
  if (keeps_) {
    if (!kept_) kept_ = {index, parameter._version()};
    if (causes_[index] == Cause::kNone) causes_[index] = Cause::kKept;
    return;
  }
  if (causes_[index] != Cause::kLate) late_.push_back({index, parameter._version()});
  causes_[index] = Cause::kLate;
}

void Unaveraged::mark_averaged(const std::vector<at::Tensor>& parameters) {
  ++passes_;
  forget();
  assume_averaged(parameters);
}

void Unaveraged::assume_averaged(const std::vector<at::Tensor>& parameters) {
  for (size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& gradient = parameters[index].grad();
    std::optional<Weak>& known = averaged_[index];
    if (!gradient.defined() || (known && known->_unsafe_get_target() == gradient.unsafeGetTensorImpl())) continue;
    known.emplace(gradient.getIntrusivePtr());
  }
}

void Unaveraged::forget() {
  if (any_) std::fill(causes_.begin(), causes_.end(), Cause::kNone);
  any_ = false;
  late_.clear();
  kept_.reset();
}

std::vector<Unaveraged::Found> Unaveraged::of(const std::vector<at::Tensor>& parameters) const {
  std::vector<Found> all;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& gradient = parameters[index].grad();
    if (!gradient.defined()) continue;
    const std::optional<Weak>& known = averaged_[index];
    const bool foreign = !known || known->_unsafe_get_target() != gradient.unsafeGetTensorImpl();
    const Cause cause = causes_[index] == Cause::kNone && foreign ? Cause::kForeign : causes_[index];
    if (cause != Cause::kNone) all.push_back({index, cause});
  }
  return all;
}

std::optional<size_t> Unaveraged::stepped(const std::vector<at::Tensor>& parameters) const {
  for (const Added& late : late_) {
    if (parameters[late.index]._version() != late.version) return late.index;
  }
  return std::nullopt;
}

bool Unaveraged::stepped_kept(const std::vector<at::Tensor>& parameters) const {
  return kept_ && parameters[kept_->index]._version() != kept_->version;
}

}  // namespace ringdp::reducer
