#include "reducer/mean.h"

#include <ATen/ATen.h>

#include "backend/compat.h"
#include "reducer/end_time.h"
#include "reducer/exchange.h"
#include "reducer/memory.h"

namespace ringdp::reducer {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What this rank gets of `flat` when it is scattered.
at::Tensor part_of(const at::Tensor& flat, int ranks) { return at::empty({flat.numel() / ranks}, flat.options()); }

// What a sink has taken of a part, and what it has not.
class Feed {
 public:
  Feed(at::Tensor part, std::shared_ptr<ShardSink> sink) : part_(std::move(part)), sink_(std::move(sink)) {}
  void take(int64_t begin, int64_t count) {
    const auto* const first = static_cast<const std::byte*>(part_.const_data_ptr());
    sink_->take(begin, count, first + begin * static_cast<int64_t>(part_.itemsize()));
    taken_ += count;
  }
  // Once the part is there. An algorithm tells of all elements or of none.
  void take_rest() {
    if (taken_ == 0 && part_.numel() > 0) take(0, part_.numel());
    TORCH_INTERNAL_ASSERT(taken_ == part_.numel());
  }

 private:
  const at::Tensor part_;
  const std::shared_ptr<ShardSink> sink_;
  int64_t taken_ = 0;
};

class FedReduction final : public Reduction {
 public:
  // `feed`: of the result; null where that is not known before the end.
  FedReduction(std::unique_ptr<Reduction> reduction, std::shared_ptr<ShardSink> sink, std::shared_ptr<Feed> feed)
      : reduction_(std::move(reduction)), sink_(std::move(sink)), feed_(std::move(feed)) {}
  at::Tensor finish() override {
    at::Tensor part = reduction_->finish();
    if (!feed_) feed_ = std::make_shared<Feed>(part, sink_);
    feed_->take_rest();
    return part;
  }
  int64_t ended_ns() const override { return reduction_->ended_ns(); }

 private:
  const std::unique_ptr<Reduction> reduction_;
  const std::shared_ptr<ShardSink> sink_;
  std::shared_ptr<Feed> feed_;
};

class FusedReduction final : public Reduction {
 public:
  FusedReduction(at::Tensor result, WorkPtr work, int64_t started_ns)
      : result_(std::move(result)), work_(std::move(work)), started_ns_(started_ns) {}
  at::Tensor finish() override {
    work_->wait();
    return result_;
  }
  // ringdp's works know how long they took.
  int64_t ended_ns() const override { return started_ns_ + static_cast<int64_t>(work_->getDuration() * 1e6); }

 private:
  const at::Tensor result_;
  const WorkPtr work_;
  const int64_t started_ns_;
};

class FusedMean final : public Mean {
 public:
  FusedMean(c10::intrusive_ptr<c10d::Backend> backend, backend::Capabilities& capabilities)
      : backend_(std::move(backend)), capabilities_(capabilities) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor, DigestsPtr digests) override {
    const int64_t now = now_ns();
    auto work = capabilities_.reduce_div(flat, divisor, /*asynchronous=*/true, std::move(digests));
    return std::make_unique<FusedReduction>(flat, std::move(work), now);
  }
  bool carries_digests() const override { return true; }
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr digests) override {
    return scatter(part_of(flat, backend_->getSize()), flat, divisor, {}, std::move(digests));
  }
  std::unique_ptr<Reduction> start_scatter_into(const at::Tensor& flat, double divisor,
                                                std::shared_ptr<ShardSink> sink, DigestsPtr digests) override {
    if (sink->on_device() != nullptr) return stepped(flat, divisor, *sink, std::move(digests));
    const at::Tensor part = part_of(flat, backend_->getSize());
    const auto feed = std::make_shared<Feed>(part, sink);
    const auto take = [feed](int64_t begin, int64_t count) { feed->take(begin, count); };
    auto reduction = scatter(part, flat, divisor, take, std::move(digests));
    return std::make_unique<FedReduction>(std::move(reduction), std::move(sink), feed);
  }
  const char* name() const override { return "fused"; }

 private:
  // Nothing is left of the means.
  std::unique_ptr<Reduction> stepped(const at::Tensor& flat, double divisor, ShardSink& sink, DigestsPtr digests) {
    const int64_t now = now_ns();
    auto work = capabilities_.reduce_scatter_step(flat, divisor, *sink.on_device(), std::move(digests));
    sink.begun(work);
    return std::make_unique<FusedReduction>(at::empty({0}, flat.options()), std::move(work), now);
  }
  std::unique_ptr<Reduction> scatter(const at::Tensor& part, const at::Tensor& flat, double divisor,
                                     backend::Capabilities::OnResult on_result, DigestsPtr digests) {
    const int64_t now = now_ns();
    auto work = capabilities_.reduce_scatter_div(part, flat, divisor, /*asynchronous=*/true, std::move(on_result),
                                                 std::move(digests));
    return std::make_unique<FusedReduction>(part, std::move(work), now);
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;  // owns capabilities_
  backend::Capabilities& capabilities_;
};

class SummedReduction final : public Reduction {
 public:
  SummedReduction(at::Tensor sum, double divisor, WorkPtr work)
      : sum_(std::move(sum)), divisor_(divisor), work_(std::move(work)), end_(*work_) {}
  at::Tensor finish() override {
    work_->wait();
    end_.get();
    return sum_.div_(divisor_);
  }
  int64_t ended_ns() const override { return end_.get(); }

 private:
  at::Tensor sum_;
  const double divisor_;
  const WorkPtr work_;
  const EndTime end_;
};

class SummedMean final : public Mean {
 public:
  explicit SummedMean(GroupPtr group) : group_(std::move(group)) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor, DigestsPtr) override {
    std::vector<at::Tensor> tensors{flat};
    return std::make_unique<SummedReduction>(flat, divisor, group_->allreduce(tensors));
  }
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr) override {
    at::Tensor part = part_of(flat, group_->getSize()), whole = flat;
    return std::make_unique<SummedReduction>(part, divisor, backend::scatter_sum(*group_, part, whole));
  }
  const char* name() const override { return "summed"; }

 private:
  const GroupPtr group_;
};

}  // namespace

std::unique_ptr<Reduction> Mean::start_scatter_into(const at::Tensor& flat, double divisor,
                                                    std::shared_ptr<ShardSink> sink, DigestsPtr digests) {
  return std::make_unique<FedReduction>(start_scatter(flat, divisor, std::move(digests)), std::move(sink), nullptr);
}

std::unique_ptr<Mean> make_mean(const GroupPtr& group, const at::Device& device, bool rank_order) {
  auto backend = backend_of(*group, device);
  if (auto* capabilities = dynamic_cast<backend::Capabilities*>(backend.get())) {
    return std::make_unique<FusedMean>(std::move(backend), *capabilities);
  }
  if (rank_order) return std::make_unique<ExchangedMean>(group);
  return std::make_unique<SummedMean>(group);
}

}  // namespace ringdp::reducer
