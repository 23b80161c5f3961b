#include "reducer/reducer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace ringdp::reducer {
namespace {

std::vector<size_t> reversed_indices(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace

// Gradients arrive in about the reverse order of the layers, so buckets serve from the first pass on.
Reducer::Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<bool> sparse,
                 GroupPtr group, Options options)
    : parameters_(std::move(parameters)),
      names_(std::move(names)),
      sparse_(std::move(sparse)),
      options_(std::move(options)),
      group_(std::move(group)),
      mean_(make_mean(group_, parameters_.at(0).device(), options_.rank_order)),
      readiness_(parameters_.size()),
      usage_(parameters_.size(), parameters_.at(0).device()),
      unaveraged_(parameters_.size()),
      divisor_(group_->getSize()),
      hooks_(parameters_, [this](size_t index, const at::Tensor& arrived) { autograd_hook(index, arrived); }) {
  TORCH_CHECK(!options_.bucket_limits.empty(), "a reducer needs at least one bucket limit");
  TORCH_CHECK(!sharded() || std::count(sparse_.begin(), sparse_.end(), true) == 0,
              "DistributedDataParallel: sparse gradients have no shards: use zero_stage=1 or a dense gradient");
  check_carries_digests();
  unaveraged_.take_for_averaged(parameters_);  // of a copy, or of what came before the wrapper
  if (options_.check_drift) drift_.emplace(names_);
  const auto by_size = [&] {
    return make_layout(parts(), reversed_indices(parameters_.size()), options_.bucket_limits, sharded());
  };
  set_buckets(options_.layout.empty() ? by_size() : options_.layout);
}

void Reducer::check_carries_digests() const {
  if (!options_.check_drift) return;
  TORCH_CHECK(mean_->carries_digests() && parameters_[0].is_cpu(), "DistributedDataParallel: check_drift=True needs "
              "parameters on the CPU, which are on ", parameters_[0].device(), ", and a group of backend ringdp, whose "
              "collectives carry checksums: leave it out, and call ringdp.check_replicas(model) now and then");
}

void Reducer::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  const std::lock_guard lock(mutex_);
  if (hook_) refuse("register_comm_hook or register_builtin_comm_hook can only be called once.");
  hook_ = std::make_unique<CommHook>(std::move(hook));
}

void Reducer::set_static_graph() {
  const std::lock_guard lock(mutex_);
  if (timeline_.step > 0) {
    refuse("set_static_graph() should be called before training loop starts and after DDP is constructed.");
  }
  static_graph_ = true;
}

void Reducer::set_gradient_dtype(at::ScalarType dtype) {
  const std::lock_guard lock(mutex_);
  gradient_dtype_ = dtype;
  set_buckets(layout_);
}

void Reducer::set_optimizer_in_backward() {
  const std::lock_guard lock(mutex_);
  optimizer_in_backward_ = true;
}

void Reducer::set_after_backward(std::function<void()> after_backward) {
  const std::lock_guard lock(mutex_);
  after_backward_ = std::move(after_backward);
}

void Reducer::ask_divisor(WorkPtr work) {
  const std::lock_guard lock(mutex_);
  divisor_.ask(std::move(work));
}

void Reducer::set_divisor(double divisor) {
  const std::lock_guard lock(mutex_);
  divisor_.set(divisor);
}

}  // namespace ringdp::reducer
