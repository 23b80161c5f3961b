#include "reducer/exchange.h"

#include <ATen/ATen.h>

#include "backend/compat.h"
#include "reducer/fold_shards.h"

namespace ringdp::reducer {

// One tensor on its way.
class Exchange {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `whole`: a multiple of the group's size long; the result is written there.
  Exchange(GroupPtr group, at::Tensor whole, double divisor)
      : group_(std::move(group)), whole_(std::move(whole)), shards_(at::empty_like(whole_)), divisor_(divisor) {
    at::Tensor to = bytes_of(shards_), from = bytes_of(whole_);
    shuffle_ = backend::exchange_parts(*group_, to, from);
  }

  // Folds what has come and starts to spread it; once.
  void fold() {
    if (gather_) return;
    shuffle_->wait();
    own_ = fold_shards(shards_.view({group_->getSize(), whole_.numel() / group_->getSize()}), divisor_);
    shards_.reset();
    at::Tensor to = bytes_of(whole_), from = bytes_of(own_);
    gather_ = backend::gather_parts(*group_, to, from);
    end_ = EndTime(*gather_);
  }

  void finish() {
    fold();
    gather_->wait();
    end_.get();
  }
  int64_t ended_ns() const { return end_.get(); }

 private:
  static at::Tensor bytes_of(const at::Tensor& flat) { return flat.view(at::kByte); }

  const GroupPtr group_;
  const at::Tensor whole_;
  at::Tensor shards_, own_;
  const double divisor_;
  WorkPtr shuffle_, gather_;
  EndTime end_;
};

namespace {

class ExchangedReduction final : public Reduction {
 public:
  ExchangedReduction(at::Tensor flat, at::Tensor whole, std::shared_ptr<Exchange> exchange)
      : flat_(std::move(flat)), whole_(std::move(whole)), exchange_(std::move(exchange)) {}
  at::Tensor finish() override {
    exchange_->finish();
    if (!whole_.is_same(flat_)) flat_.copy_(whole_.narrow(0, 0, flat_.numel()));
    return flat_;
  }
  int64_t ended_ns() const override { return exchange_->ended_ns(); }

 private:
  const at::Tensor flat_, whole_;
  const std::shared_ptr<Exchange> exchange_;
};

class ScatterReduction final : public Reduction {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  ScatterReduction(at::Tensor flat, at::Tensor shards, double divisor, WorkPtr work)
      : flat_(std::move(flat)), shards_(std::move(shards)), divisor_(divisor), work_(std::move(work)), end_(*work_) {}
  at::Tensor finish() override {
    work_->wait();
    end_.get();
    // Memory of its own: a view would keep everybody's shards alive.
    return fold_shards(shards_, divisor_).clone();
  }
  int64_t ended_ns() const override { return end_.get(); }

 private:
  const at::Tensor flat_, shards_;  // flat_: alive while it is sent
  const double divisor_;
  const WorkPtr work_;
  const EndTime end_;
};

at::Tensor padded(const at::Tensor& flat, int64_t multiple) {
  const int64_t missing = (multiple - flat.numel() % multiple) % multiple;
  return missing == 0 ? flat : at::constant_pad_nd(flat, {0, missing});
}

}  // namespace

std::unique_ptr<Reduction> ExchangedMean::start(const at::Tensor& flat, double divisor, DigestsPtr) {
  at::Tensor whole = padded(flat, group_->getSize());
  auto exchange = std::make_shared<Exchange>(group_, whole, divisor);
  if (const auto before = latest_.lock()) before->fold();
  latest_ = exchange;
  return std::make_unique<ExchangedReduction>(flat, std::move(whole), std::move(exchange));
}

std::unique_ptr<Reduction> ExchangedMean::start_scatter(const at::Tensor& flat, double divisor, DigestsPtr) {
  const at::Tensor shards = at::empty_like(flat);
  at::Tensor to = shards.view(at::kByte), from = flat.view(at::kByte);
  auto work = backend::exchange_parts(*group_, to, from);
  const int64_t ranks = group_->getSize();
  return std::make_unique<ScatterReduction>(flat, shards.view({ranks, flat.numel() / ranks}), divisor, std::move(work));
}

}  // namespace ringdp::reducer
