// Reducer: what can be asked of it.
#include <ATen/ATen.h>

#include <numeric>

#include "reducer/memory.h"
#include "reducer/reducer.h"

namespace ringdp::reducer {

std::vector<Reducer::BucketFacts> Reducer::buckets() const {
  const std::lock_guard lock(mutex_);
  std::vector<BucketFacts> all;
  for (const Bucket& bucket : buckets_) {
    const at::Tensor& parameter = bucket.parameters.front();
    BucketFacts facts;
    facts.indices = bucket.indices;
    facts.sparse = bucket.sparse;
    facts.device = parameter.device().str();
    const auto size = static_cast<int64_t>(bucket.options.dtype().itemsize());
    facts.dtype = c10::toString(c10::typeMetaToScalarType(bucket.options.dtype()));
    facts.shared = !bucket.sparse && (offers_shared_memory(*group_, parameter.device()) ||
                                      (bucket.keeps_memory() && is_shared(*group_, bucket.memory)));
    const size_t lengths = std::accumulate(bucket.lengths.begin(), bucket.lengths.end(), size_t{0});
    if (!bucket.sparse) facts.bytes = static_cast<int64_t>(lengths) * size;
    if (bucket.keeps_memory()) facts.memory_bytes = bucket.padded * size;
    all.push_back(std::move(facts));
  }
  return all;
}

void Reducer::note(trace::Kind kind, int64_t time_ns, int bucket) const {
  trace::Event event;
  event.kind = kind;
  event.time_ns = time_ns;
  event.seq = static_cast<uint64_t>(timeline_.step);
  event.peer = bucket;
  if (bucket >= 0) {
    const at::TensorOptions& options = buckets_[bucket].options;
    event.bytes = buckets_[bucket].elements * static_cast<int64_t>(options.dtype().itemsize());
  }
  trace::recorder().note(event);
}

Timeline Reducer::timeline() const {
  const std::lock_guard lock(mutex_);
  return timeline_;
}

std::vector<size_t> Reducer::arrival_order() const {
  const std::lock_guard lock(mutex_);
  return arrival_;
}

std::vector<size_t> Reducer::unused() const {
  const std::lock_guard lock(mutex_);
  return unused_;
}

std::map<std::string, int64_t> Reducer::numbers() const {
  const std::lock_guard lock(mutex_);
  return {{"rebuilt", rebuilt_}, {"unused_changed", unused_changed_}, {"launched", launched_}};
}

Layout Reducer::layout() const {
  const std::lock_guard lock(mutex_);
  return layout_;
}

std::string Reducer::mean_name() const {
  const std::lock_guard lock(mutex_);
  return mean_->name();
}

std::vector<Unaveraged::Found> Reducer::unaveraged() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? unaveraged_.of(parameters_) : std::vector<Unaveraged::Found>{};
}

std::string Reducer::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace ringdp::reducer
