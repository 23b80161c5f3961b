// Reducer: gradients that no rank keeps whole (ZeRO stage 2).
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "reducer/reducer.h"

namespace ringdp::reducer {

std::unique_ptr<Reduction> Reducer::start_scatter(const at::Tensor& flat, size_t number,
                                                  Mean::DigestsPtr digests) {
  const double divisor = divisor_.get();  // which may refuse, before anything counts as stepped
  if (make_sinks_ && sinks_.empty()) sinks_ = make_sinks_();
  if (number >= sinks_.size() || !sinks_[number]) return mean_->start_scatter(flat, divisor, std::move(digests));
  // From now on they change: what this pass has saved of them must not be used.
  for (const at::Tensor& parameter : buckets_[number].parameters) parameter.unsafeGetTensorImpl()->bump_version();
  return mean_->start_scatter_into(flat, divisor, std::move(sinks_[number]), std::move(digests));
}

// Means of several passes add up in the bucket's own type, as .grad does.
void Reducer::take_part(size_t number, const at::Tensor& part) {
  Bucket& bucket = buckets_[number];
  const bool complex = at::isComplexType(c10::typeMetaToScalarType(bucket.options.dtype()));
  const at::Tensor typed = complex ? at::view_as_complex(part.view({-1, 2})) : part;
  if (on_shard_) {
    on_shard_(number, typed);
  } else if (bucket.shard.defined()) {
    bucket.shard.add_(typed);
  } else {
    bucket.shard = typed;
  }
}

// After a pass that has failed: no sink steps anything from now on.
void Reducer::wait_for_running() {
  for (const auto& running : running_) {
    if (!make_sinks_ || !running) continue;
    try {
      running->finish();
    } catch (const std::exception&) {  // what failed steps nothing more either
    }
  }
}

void Reducer::set_on_shard(std::function<Sinks()> sinks, OnShard on_shard) {
  const std::lock_guard lock(mutex_);
  make_sinks_ = std::move(sinks);
  on_shard_ = std::move(on_shard);
}

// What no rank has used in any pass stays absent, so that an optimizer skips it.
void Reducer::note_used() {
  const bool may_be_unused = options_.find_unused || static_graph_;
  for (size_t index = 0; index < used_.size(); ++index) {
    if (!used_[index]) used_[index] = !may_be_unused || usage_.anywhere(index);
  }
}

std::vector<at::Tensor> Reducer::shards() const {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor> shards;
  for (const Bucket& bucket : buckets_) shards.push_back(bucket.shard);
  return shards;
}

std::vector<bool> Reducer::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Reducer::zero_shards() {
  const c10::AutoGradMode no_grad(false);
  const std::lock_guard lock(mutex_);
  for (const Bucket& bucket : buckets_) {
    if (bucket.shard.defined()) bucket.shard.zero_();
  }
}

void Reducer::drop_shards() {
  const std::lock_guard lock(mutex_);
  for (Bucket& bucket : buckets_) bucket.shard.reset();
  used_.assign(used_.size(), false);
}

}  // namespace ringdp::reducer
