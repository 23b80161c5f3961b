// Reducer: from a bucket's reduction to gradients in their places.
#include <ATen/ATen.h>

#include "reducer/gradients.h"
#include "reducer/reducer.h"

namespace ringdp::reducer {

void Reducer::settle(size_t number) {
  Bucket& bucket = buckets_[number];
  if (auto running = std::move(running_[number])) {
    const at::Tensor result = for_bucket(number, [&] { return running->finish(); });
    timeline_.buckets[number].done = running->ended_ns();
    note(trace::Kind::kDone, timeline_.buckets[number].done, static_cast<int>(number));
    if (drift_) drift_->check(number, bucket, timeline_.step, *group_);
    bucket.sharded ? take_part(number, result) : hand_out(bucket, result);
  }
  let_go(bucket);
}

void Reducer::hand_out(Bucket& bucket, const at::Tensor& result) {
  // What no rank has used keeps its .grad.
  const auto keeps_grad = [&](size_t index) {
    return optimizer_in_backward_ || ((options_.find_unused || static_graph_) && !usage_.anywhere(index));
  };
  if (bucket.sparse) {
    if (!keeps_grad(bucket.indices[0])) bucket.parameters[0].mutable_grad() = result;
    return;
  }
  renew_views(bucket);
  const bool in_place = result.is_alias_of(bucket.memory);
  const auto results = in_place ? bucket.views : views_into(result.contiguous().flatten(), bucket);
  for (size_t position = 0; position < results.size(); ++position) {
    const size_t index = bucket.indices[position];
    if (keeps_grad(index)) continue;
    if (options_.gradient_as_bucket_view) {
      give_view(parameters_[index], bucket.views[position], results[position], names_[index]);
    } else {
      give_copy(parameters_[index], results[position]);
    }
  }
}

}  // namespace ringdp::reducer
