#include "reducer/mean.h"

#include <ATen/ATen.h>

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/tensors.h"
#include "kernels/fold.h"
#include "reducer/bucket.h"

namespace ringdp::reducer {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Memory for this rank's part of `flat`.
at::Tensor part_of(const at::Tensor& flat, int ranks) { return at::empty({flat.numel() / ranks}, flat.options()); }

// Gives a part to its sink and counts what the sink has taken.
class Feed {
 public:
  Feed(at::Tensor part, std::shared_ptr<ShardSink> sink) : part_(std::move(part)), sink_(std::move(sink)) {}
  void take(int64_t begin, int64_t count) {
    const auto* const first = static_cast<const std::byte*>(part_.const_data_ptr());
    sink_->take(begin, count, first + begin * static_cast<int64_t>(part_.itemsize()));
    taken_ += count;
  }
  // Call when the part is complete. An algorithm has reported all of its elements or none.
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
  // `feed` is null if no part of the result is known before the end.
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
    auto work = capabilities_.reduce_div(flat, flat, divisor, /*asynchronous=*/true, std::move(digests));
    return std::make_unique<FusedReduction>(flat, std::move(work), now);
  }
  bool carries_digests() const override { return true; }
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr digests) override {
    return scatter(part_of(flat, backend_->getSize()), flat, divisor, {}, std::move(digests));
  }
  std::unique_ptr<Reduction> start_scatter_into(const at::Tensor& flat, double divisor, std::shared_ptr<ShardSink> sink,
                                                DigestsPtr digests) override {
    if (sink->on_device() != nullptr) return stepped(flat, divisor, *sink, std::move(digests));
    const at::Tensor part = part_of(flat, backend_->getSize());
    const auto feed = std::make_shared<Feed>(part, sink);
    const auto take = [feed](int64_t begin, int64_t count) { feed->take(begin, count); };
    auto reduction = scatter(part, flat, divisor, take, std::move(digests));
    return std::make_unique<FedReduction>(std::move(reduction), std::move(sink), feed);
  }
  const char* name() const override { return "fused"; }

 private:
  // The means are not kept.
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

// A sum that is divided when it has arrived.
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

at::Tensor fold_on_cpu(const at::Tensor& shards, double divisor) {
  std::vector<const void*> sources;
  for (int64_t rank = 0; rank < shards.size(0); ++rank) sources.push_back(shards[rank].data_ptr());
  const at::Tensor own = shards[0];
  void* const target = own.data_ptr();
  kernels::FoldArgs args;
  args.srcs = sources.data();
  args.n_srcs = static_cast<int>(sources.size());
  args.dsts = &target;
  args.n_dsts = 1;
  args.count = own.numel();
  args.dtype = backend::checked_dtype(shards, "mean");
  args.divisor = divisor;
  backend::guarded([&] { kernels::fold(args); });
  return own;
}

// The sum of the shards in rank order, divided once: on the CPU by the kernel that ringdp's backend uses, elsewhere by
// torch's element-wise operations in the same order and precision. `shards`: [ranks, elements], contiguous;
// overwritten. The result has the dtype of the shards; 16-bit floats are reduced and divided in float32 and rounded
// once.
at::Tensor fold_shards(const at::Tensor& shards, double divisor) {
  if (shards.device().is_cpu()) return fold_on_cpu(shards, divisor);
  const auto dtype = shards.scalar_type();
  at::Tensor sum = at::isReducedFloatingType(dtype) ? shards[0].to(at::kFloat) : shards[0];
  for (int64_t rank = 1; rank < shards.size(0); ++rank) sum.add_(shards[rank]);
  return sum.div_(divisor).to(dtype);
}

// One tensor that is being exchanged.
class Exchange {
 public:
  // The length of `whole` is a multiple of the group's size; the result is written there.
  Exchange(GroupPtr group, at::Tensor whole, double divisor)
      : group_(std::move(group)), whole_(std::move(whole)), shards_(at::empty_like(whole_)), divisor_(divisor) {
    at::Tensor to = bytes_of(shards_), from = bytes_of(whole_);
    shuffle_ = backend::exchange_parts(*group_, to, from);
  }

  // Reduces what has arrived and starts to gather it; once.
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
  ScatterReduction(at::Tensor flat, at::Tensor shards, double divisor, WorkPtr work)
      : flat_(std::move(flat)), shards_(std::move(shards)), divisor_(divisor), work_(std::move(work)), end_(*work_) {}
  at::Tensor finish() override {
    work_->wait();
    end_.get();
    // Memory of its own: a view would keep the shards of all ranks alive.
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

// The mean over a backend without a fused one: an all_to_all takes shard r of every rank to rank r, which sums them in
// rank order and divides; an all_gather takes the results to all ranks.
//
// Tensors are sent as bytes, so the backend need not support their dtype. The gather of one tensor is started right
// after the all_to_all of the next one, or when it is waited for. This order depends only on the calls of start() and
// finish(), so it is the same on all ranks.
class ExchangedMean final : public Mean {
 public:
  explicit ExchangedMean(GroupPtr group) : group_(std::move(group)) {}
  std::unique_ptr<Reduction> start(const at::Tensor& flat, double divisor, DigestsPtr) override {
    at::Tensor whole = padded(flat, group_->getSize());
    auto exchange = std::make_shared<Exchange>(group_, whole, divisor);
    if (const auto before = latest_.lock()) before->fold();
    latest_ = exchange;
    return std::make_unique<ExchangedReduction>(flat, std::move(whole), std::move(exchange));
  }
  // Without the gather.
  std::unique_ptr<Reduction> start_scatter(const at::Tensor& flat, double divisor, DigestsPtr) override {
    const at::Tensor shards = at::empty_like(flat);
    at::Tensor to = shards.view(at::kByte), from = flat.view(at::kByte);
    auto work = backend::exchange_parts(*group_, to, from);
    const int64_t ranks = group_->getSize();
    return std::make_unique<ScatterReduction>(flat, shards.view({ranks, flat.numel() / ranks}), divisor,
                                              std::move(work));
  }
  int64_t granularity() const override { return group_->getSize(); }
  const char* name() const override { return "exchanged"; }

 private:
  const GroupPtr group_;
  std::weak_ptr<Exchange> latest_;
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

std::unique_ptr<Reduction> start_sparse_mean(c10d::ProcessGroup& group, const at::Tensor& gradient, double divisor) {
  std::vector<at::Tensor> tensors{gradient};
  return std::make_unique<SummedReduction>(gradient, divisor, group.allreduce(tensors));
}

}  // namespace ringdp::reducer
