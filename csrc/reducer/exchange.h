// The mean over a backend that has no fused one: an all_to_all takes shard r of every rank to rank r, which folds them in
// rank order and divides, an all_gather takes the results to everybody. 2 (N-1)/N of the tensor per rank, as a ring.
//
// Bytes travel, not numbers, so the backend need not know the dtype. The gather of one tensor is started right after
// the all_to_all of the next one, or when somebody waits for it: an order that depends on the starts and finishes only,
// and so is the same on all ranks.
#pragma once
#include "reducer/end_time.h"
#include "reducer/mean.h"

namespace ringdp::reducer {

class Exchange;

class ExchangedMean final : public Mean {
 public:
  explicit ExchangedMean(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor, DigestsPtr digests) override;
  // Without the gather.
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr digests) override;
  int64_t granularity() const override { return group_->getSize(); }
  const char* name() const override { return "exchanged"; }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::weak_ptr<Exchange> latest_;
};

}  // namespace ringdp::reducer
