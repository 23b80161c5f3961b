#include "reducer/usage.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringdp::reducer {

Usage::Usage(size_t parameters, const at::Device& device)
    : of_this_rank_(parameters, 0), sum_(at::zeros({static_cast<int64_t>(parameters)}, at::device(device).dtype(at::kInt))) {}

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

}  // namespace ringdp::reducer
