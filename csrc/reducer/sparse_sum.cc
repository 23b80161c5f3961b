#include "reducer/sparse_sum.h"

#include <ATen/ATen.h>

#include "reducer/end_time.h"

namespace ringdp::reducer {
namespace {

class SparseReduction final : public Reduction {
 public:
  SparseReduction(at::Tensor gradient, double divisor, c10::intrusive_ptr<c10d::Work> work)
      : gradient_(std::move(gradient)), divisor_(divisor), work_(std::move(work)), end_(*work_) {}
  at::Tensor finish() override {
    work_->wait();
    end_.get();
    return gradient_.div_(divisor_);  // the sum was written there
  }
  int64_t ended_ns() const override { return end_.get(); }

 private:
  at::Tensor gradient_;
  const double divisor_;
  const c10::intrusive_ptr<c10d::Work> work_;
  const EndTime end_;
};

}  // namespace

std::unique_ptr<Reduction> start_sparse_mean(c10d::ProcessGroup& group, const at::Tensor& gradient, double divisor) {
  std::vector<at::Tensor> tensors{gradient};
  return std::make_unique<SparseReduction>(gradient, divisor, group.allreduce(tensors));
}

}  // namespace ringdp::reducer
