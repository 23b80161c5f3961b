#include "reducer/mean.h"

#include <ATen/ATen.h>

#include "backend/capabilities.h"
#include "reducer/end_time.h"
#include "reducer/exchange.h"
#include "reducer/memory.h"

namespace ringdp::reducer {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class FusedReduction final : public Reduction {
 public:
  FusedReduction(at::Tensor flat, WorkPtr work, int64_t started_ns)
      : flat_(std::move(flat)), work_(std::move(work)), started_ns_(started_ns) {}
  at::Tensor finish() override {
    work_->wait();
    return flat_;
  }
  // ringdp's works know how long they took.
  int64_t ended_ns() const override { return started_ns_ + static_cast<int64_t>(work_->getDuration() * 1e6); }

 private:
  const at::Tensor flat_;
  const WorkPtr work_;
  const int64_t started_ns_;
};

class FusedMean final : public Mean {
 public:
  FusedMean(c10::intrusive_ptr<c10d::Backend> backend, backend::Capabilities& capabilities)
      : backend_(std::move(backend)), capabilities_(capabilities) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor) override {
    const int64_t now = now_ns();
    return std::make_unique<FusedReduction>(flat, capabilities_.reduce_div(flat, divisor, /*asynchronous=*/true), now);
  }
  const char* name() const override { return "fused"; }

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;  // owns capabilities_
  backend::Capabilities& capabilities_;
};

class SummedReduction final : public Reduction {
 public:
  SummedReduction(at::Tensor flat, double divisor, WorkPtr work)
      : flat_(std::move(flat)), divisor_(divisor), work_(std::move(work)), end_(*work_) {}
  at::Tensor finish() override {
    work_->wait();
    end_.get();
    return flat_.div_(divisor_);
  }
  int64_t ended_ns() const override { return end_.get(); }

 private:
  at::Tensor flat_;
  const double divisor_;
  const WorkPtr work_;
  const EndTime end_;
};

class SummedMean final : public Mean {
 public:
  explicit SummedMean(GroupPtr group) : group_(std::move(group)) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor) override {
    std::vector<at::Tensor> tensors{flat};
    return std::make_unique<SummedReduction>(flat, divisor, group_->allreduce(tensors));
  }
  const char* name() const override { return "summed"; }

 private:
  const GroupPtr group_;
};

}  // namespace

std::unique_ptr<Mean> make_mean(const GroupPtr& group, const at::Device& device, bool rank_order) {
  auto backend = backend_of(*group, device);
  if (auto* capabilities = dynamic_cast<backend::Capabilities*>(backend.get())) {
    return std::make_unique<FusedMean>(std::move(backend), *capabilities);
  }
  if (rank_order) return std::make_unique<ExchangedMean>(group);
  return std::make_unique<SummedMean>(group);
}

}  // namespace ringdp::reducer
