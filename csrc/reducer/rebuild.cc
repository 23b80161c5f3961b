// Reducer: which bucket holds what, and when that changes.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/errors.h"
#include "reducer/agreed_layout.h"
#include "reducer/memory.h"
#include "reducer/reducer.h"

namespace ringdp::reducer {
namespace {

// A .grad that exists moves into the new bucket; one that does not stays absent, as no rank may have used it.
void adopt(const Bucket& bucket) {
  for (size_t position = 0; position < bucket.views.size(); ++position) {
    at::Tensor& gradient = bucket.parameters[position].mutable_grad();
    if (!gradient.defined()) continue;
    bucket.views[position].copy_(gradient);
    gradient = bucket.views[position];
  }
}

}  // namespace

std::vector<Part> Reducer::parts() const {
  std::vector<Part> parts;
  std::map<std::pair<at::ScalarType, std::string>, int64_t> kinds;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& parameter = parameters_[index];
    const auto kind = kinds.try_emplace({parameter.scalar_type(), parameter.device().str()}, kinds.size()).first->second;
    parts.push_back({static_cast<int64_t>(parameter.nbytes()), kind, sparse_[index]});
  }
  return parts;
}

void Reducer::set_buckets(const Layout& layout) {
  const c10::AutoGradMode no_grad(false);
  layout_ = layout;
  const bool anew = !buckets_.empty(), together = !options_.alone || rebuilt_;
  buckets_.clear();
  try {
    make_buckets(together);
    if (anew && together) reclaim_memory(*group_, parameters_[0].device());
  } catch (...) {  // a rank was lost on the way, or memory has run out: nothing half made is used
    buckets_.clear();
    throw;
  }
}

void Reducer::make_buckets(bool together) {
  used_.assign(parameters_.size(), false);
  const int64_t granularity = sharded() ? options_.shard_block * group_->getSize() : mean_->granularity();
  const BucketShape shape{granularity, options_.shard_block, gradient_dtype_, options_.gradient_as_bucket_view};
  places_.assign(parameters_.size(), {});
  for (const auto& members : layout_) {
    const bool sparse = sparse_[members.front()];
    buckets_.push_back(make_bucket(parameters_, members, sparse, shape));
    if (buckets_.back().keeps_memory()) allocate(buckets_.back(), *group_, together);
    for (size_t position = 0; position < members.size(); ++position) {
      places_[members[position]] = {buckets_.size() - 1, position};
    }
    if (options_.gradient_as_bucket_view) adopt(buckets_.back());
  }
}

void Reducer::check_laid_out() const {
  if (!buckets_.empty()) return;
  backend::refuse("DistributedDataParallel: its buckets could not be made, see the error before; make the wrapper anew, "
                  "or give it a new process group");
}

bool Reducer::rebuild_buckets() {
  check_finished();
  const std::lock_guard lock(mutex_);
  if (rebuilt_ || sharded() || !options_.layout.empty() || arrival_.empty() || searches()) return false;
  rebuilt_ = true;
  const Layout own = make_layout(parts(), arrival_, options_.bucket_limits);
  const Layout agreed = agree_on(own, parameters_.size(), *group_, parameters_[0].device());
  if (agreed != layout_) set_buckets(agreed);
  return true;
}

void Reducer::complete_arrival() {
  std::vector<bool> there(parameters_.size(), false);
  for (const size_t index : arrival_) there[index] = true;
  for (const auto& members : layout_) {
    std::copy_if(members.begin(), members.end(), std::back_inserter(arrival_), [&](size_t i) { return !there[i]; });
  }
}

void Reducer::assume_arrival() {
  const std::lock_guard lock(mutex_);
  if (arrival_.empty()) complete_arrival();
}

void Reducer::reset() {
  const std::lock_guard lock(mutex_);
  wait_for_running();
  rebuilt_ = expecting_ = unfinished_ = false;
  arrival_.clear();
  running_.clear();
  unaveraged_.forget();
  gradients_shared_.reset();
  divisor_.reset();
  if (searches()) usage_.forget();
}

void Reducer::set_group(GroupPtr group) {
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  mean_ = make_mean(group_, parameters_[0].device(), options_.rank_order);
  check_carries_digests();
  divisor_ = Divisor(group_->getSize());
  set_buckets(layout_);
}

void Reducer::remove_hooks() {
  const std::lock_guard lock(mutex_);
  hooks_.remove();
}

}  // namespace ringdp::reducer
