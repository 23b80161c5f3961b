// Reducer: a step of micro-batches (leaf_sums.h).
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "reducer/reducer.h"

namespace ringdp::reducer {

void Reducer::set_leaf_stand_ins(std::vector<at::Tensor> stand_ins) {
  const std::lock_guard lock(mutex_);
  leaf_sums_.set_stand_ins(std::move(stand_ins));
}

void Reducer::set_group_of_leaf_sums(GroupPtr group, bool along_tree) {
  const std::lock_guard lock(mutex_);
  leaf_sums_.set_group_of_sums(std::move(group), along_tree);
}

void Reducer::release_memory_of_leaf_sums() {
  const std::lock_guard lock(mutex_);
  leaf_sums_.release_memory_of_sums();
}

void Reducer::expect_leaves(std::vector<std::vector<int>> leaves, double divisor) {
  const std::lock_guard lock(mutex_);
  leaf_sums_.expect(std::move(leaves), divisor);
}

void Reducer::begin_leaf(int leaf) {
  const std::lock_guard lock(mutex_);
  check_laid_out();
  in_leaf_.assign(parameters_.size(), std::nullopt);
  arrival_.clear();
  for (Bucket& bucket : buckets_) bucket.pending = bucket.indices.size();
  if (leaf_sums_.begin(leaf)) begin_leaf_times();
}

void Reducer::begin_leaf_times() {
  if (std::exchange(leaf_times_begun_, true)) return;
  ++timeline_.step;
  timeline_.begin_backward(now_ns(), buckets_.size());
  timeline_.forward = timeline_.backward;
}

void Reducer::mark_done(size_t bucket) {
  mark(timeline_.buckets[bucket].done, trace::Kind::kDone, now_ns(), static_cast<int>(bucket));
}

void Reducer::share_gradients_of_leaf() {
  const std::lock_guard lock(mutex_);
  if (leaf_sums_.completes_root()) start_shared_allocation(*leaf_sums_.group_of_sums());
}

void Reducer::arrived_in_leaf(size_t index, const at::Tensor& arrived) {
  if (in_leaf_.empty()) return unaveraged_.add(index, parameters_[index]);  // no leaf has begun
  const at::Tensor& gradient = parameters_[index].grad();
  if (in_leaf_[index]) {
    changed_in_leaves_ = true;
    return;
  }
  in_leaf_[index].emplace(gradient.unsafeGetTensorImpl(), gradient.defined() ? gradient._version() : 0);
  arrival_.push_back(index);
  if (arrival_.size() == parameters_.size()) shared_allocation_.reset();
  const size_t number = places_[index].bucket;
  if (--buckets_[number].pending > 0) return;
  if (leaf_times_begun_) mark(timeline_.buckets[number].ready, trace::Kind::kReady, now_ns(), static_cast<int>(number));
  leaf_sums_.complete(number, arrived, /*seen=*/hooks_.has_others(index));
}

void Reducer::add_leaf() {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  end_leaf();
  leaf_sums_.add();
  if (leaf_times_begun_) mark(timeline_.computed, trace::Kind::kComputed, now_ns());
}

void Reducer::end_leaf_of_round() {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  end_leaf();
  leaf_sums_.check_leaf();
}

void Reducer::add_leaf_round(const std::vector<int>& leaves) {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  check_laid_out();
  TORCH_CHECK(sharded(), "rounds of leaves need shards");
  begin_leaf_times();
  mark(timeline_.computed, trace::Kind::kComputed, now_ns());
  leaf_sums_.add_round(leaves, [&](size_t number) { mark_done(number); });
}

void Reducer::end_leaf() {
  shared_allocation_.reset();
  check_laid_out();
  if (in_leaf_.empty()) {
    refuse("DistributedDataParallel: gradients were dropped inside ringdp.leaf: call abandon_backward() after it");
  }
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& gradient = parameters_[index].grad();
    const auto& known = in_leaf_[index];
    if (leaf_sums_.has_taken(places_[index].bucket)) {
      if (leaf_sums_.left_alone(index, gradient)) continue;
      refuse("DistributedDataParallel: .grad of " + names_[index] +
             " was replaced inside ringdp.leaf after it was sent, which did not happen in the steps before: use "
             "overlap=False");
    }
    if (!known) continue;
    changed_in_leaves_ |=
        known->first != gradient.unsafeGetTensorImpl() || (gradient.defined() && known->second != gradient._version());
  }
  in_leaf_.clear();
  complete_arrival();
}

void Reducer::abandon_leaf() {
  const std::lock_guard lock(mutex_);
  shared_allocation_.reset();
  leaf_sums_.abandon();
  in_leaf_.clear();
  arrival_.clear();
}

bool Reducer::send_leaves() {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  check_laid_out();
  return leaf_sums_.send_rest();
}

void Reducer::average_leaves(const std::vector<std::vector<int>>& leaves, const std::vector<bool>& used, double divisor,
                             bool as_sent, bool keep) {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  check_laid_out();
  begin_leaf_times();
  if (timeline_.computed == 0) mark(timeline_.computed, trace::Kind::kComputed, timeline_.backward);
  const std::vector<at::Tensor> means =
      leaf_sums_.average(leaves, divisor, as_sent, keep, [&](size_t number) { mark_done(number); });
  leaf_times_begun_ = false;
  for (size_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    if (bucket.sharded) {
      bucket.shard = means[number];
      continue;
    }
    const at::Tensor mean = means[number].defined() ? means[number] : at::empty({bucket.padded}, bucket.options);
    const std::vector<at::Tensor> views = views_into(mean, bucket);
    for (size_t position = 0; position < views.size(); ++position) {
      const size_t index = bucket.indices[position];
      parameters_[index].mutable_grad() = used[index] ? views[position] : at::Tensor();
    }
  }
  if (sharded()) used_ = used;
  unaveraged_.mark_averaged(parameters_);
  launched_ = static_cast<int64_t>(buckets_.size());
  end_timeline();
  const auto has_first = [](const std::vector<int>& mine) { return std::count(mine.begin(), mine.end(), 0) > 0; };
  lay_out_by_arrival(static_cast<int>(std::find_if(leaves.begin(), leaves.end(), has_first) - leaves.begin()));
}

void Reducer::drop_leaves() {
  const std::lock_guard lock(mutex_);
  leaf_sums_.drop();
  in_leaf_.clear();
  changed_in_leaves_ = leaf_times_begun_ = false;
}

std::vector<bool> Reducer::used_in_leaves() const {
  const std::lock_guard lock(mutex_);
  return leaf_sums_.used();
}

std::vector<int> Reducer::leaves() const {
  const std::lock_guard lock(mutex_);
  return leaf_sums_.leaves();
}

int64_t Reducer::leaf_bytes() const {
  const std::lock_guard lock(mutex_);
  return leaf_sums_.bytes();
}

}  // namespace ringdp::reducer
