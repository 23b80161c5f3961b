// Reducer: a joined rank does what the others' backward pass does, with nothing to contribute.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "reducer/gradients.h"
#include "reducer/memory.h"
#include "reducer/reducer.h"

namespace ringdp::reducer {

// The same collectives in the same order as launch() and finish(), and in the same memory where devices share it;
// results are thrown away.
void Reducer::shadow_backward(double divisor) {
  const std::lock_guard lock(mutex_);
  check_laid_out();
  const c10::AutoGradMode no_grad(false);
  divisor_.set(divisor);
  if (drift_) drift_->begin(buckets_.size());
  std::vector<at::Tensor> nothing, kept;  // kept: what shared memory held
  std::vector<std::unique_ptr<Reduction>> running;
  const auto begin = [&](size_t number) {
    const Bucket& bucket = buckets_[number];
    running.push_back(start(bucket, nothing[number], number,
                            rides(bucket) ? drift_->abstain(number, bucket, nothing[number]) : nullptr));
  };
  for (const Bucket& bucket : buckets_) {
    const bool shared = !bucket.sparse && bucket.keeps_memory() && is_shared(*group_, bucket.memory);
    kept.push_back(shared ? bucket.memory.clone() : at::Tensor());
    nothing.push_back(bucket.sparse ? absent_sparse(bucket.parameters[0])
                      : shared      ? bucket.memory
                                    : at::empty({bucket.padded}, bucket.options));
    if (!bucket.sparse) fill_absent(nothing.back());
    if (options_.overlap) begin(running.size());
  }
  start_usage();
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (!options_.overlap) begin(number);
    if (!running[number]) continue;
    running[number]->finish();
    if (kept[number].defined()) nothing[number].copy_(kept[number]);
    if (drift_) drift_->check(number, buckets_[number], timeline_.step, *group_);
  }
  if (drift_) drift_->check_sums(buckets_, timeline_.step, *group_);
  usage_.wait();
  shadowed_first_ = static_graph_;
  divisor_.reset();
}

}  // namespace ringdp::reducer
