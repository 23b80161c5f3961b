#include "reducer/pass_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace ringdp::reducer {
namespace {

// The Future's value, because works of groups written in Python have no result().
double sum_of(c10d::Work& work) {
  work.wait();
  const auto future = work.getFuture();
  future->wait();  // a Future may be completed after its Work
  const c10::IValue value = future->value();
  const at::Tensor sum = value.isTensor() ? value.toTensor() : value.toTensorVector().at(0);
  return sum.item<double>();
}

}  // namespace

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

Usage::Usage(size_t parameters, const at::Device& device)
    : of_this_rank_(parameters, 0),
      sum_(at::zeros({static_cast<int64_t>(parameters)}, at::device(device).dtype(at::kInt))) {}

void Usage::start(c10d::ProcessGroup& group) {
  sum_.copy_(at::from_blob(of_this_rank_.data(), {static_cast<int64_t>(of_this_rank_.size())}, at::kInt));
  std::vector<at::Tensor> tensors{sum_};
  work_ = group.allreduce(tensors);
}

bool Usage::anywhere(size_t index) {
  if (of_this_rank_[index] == 0 && work_) {
    wait();
    const at::Tensor sum = sum_.cpu();
    std::copy_n(sum.const_data_ptr<int32_t>(), of_this_rank_.size(), of_this_rank_.begin());
  }
  return of_this_rank_[index] != 0;
}

void Usage::wait() {
  if (const auto work = std::move(work_)) work->wait();
}

void Usage::forget() { std::fill(of_this_rank_.begin(), of_this_rank_.end(), 0); }

double Divisor::get() {
  if (value_ != 0) return value_;
  const double value = work_ ? sum_of(*work_) : ranks_;
  TORCH_CHECK(std::isfinite(value) && value > 0, "DistributedDataParallel: the weights of all ranks sum up to ", value,
              ", and gradients cannot be divided by that: at least one rank must have a sample in every step");
  return value_ = value;
}

void Divisor::reset() {
  work_ = nullptr;
  value_ = 0;
}

}  // namespace ringdp::reducer
