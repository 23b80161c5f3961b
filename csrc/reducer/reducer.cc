#include "reducer/reducer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/errors.h"

namespace ringdp::reducer {
namespace {

std::vector<size_t> reversed_indices(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

// Moves each existing .grad into the new bucket. An absent one stays absent, as perhaps no rank has used its parameter.
void adopt(const Bucket& bucket) {
  for (size_t position = 0; position < bucket.views.size(); ++position) {
    at::Tensor& gradient = bucket.parameters[position].mutable_grad();
    if (!gradient.defined()) continue;
    bucket.views[position].copy_(gradient);
    gradient = bucket.views[position];
  }
}

// Returns the layout of rank `root`, as gradients may arrive in a different order on each rank. One broadcast of two
// numbers per parameter: every index in launch order, and its bucket. `device`: one that the group's collectives serve.
Layout agree_on(const Layout& own, size_t parameters, c10d::ProcessGroup& group, const at::Device& device, int root) {
  std::vector<int64_t> numbers;
  for (size_t bucket = 0; bucket < own.size(); ++bucket) {
    for (const size_t index : own[bucket]) {
      numbers.push_back(static_cast<int64_t>(index));
      numbers.push_back(static_cast<int64_t>(bucket));
    }
  }
  TORCH_CHECK(numbers.size() == 2 * parameters, "a bucket layout has ", numbers.size() / 2, " of ", parameters,
              " parameters");
  std::vector<at::Tensor> tensors{at::tensor(numbers, at::kLong).to(device)};
  c10d::BroadcastOptions opts;
  opts.rootRank = root;
  group.broadcast(tensors, opts)->wait();
  const at::Tensor agreed = tensors[0].cpu();
  const int64_t* const pairs = agreed.const_data_ptr<int64_t>();
  Layout layout;
  std::vector<bool> there(parameters, false);
  for (size_t i = 0; i < parameters; ++i) {
    const auto index = static_cast<size_t>(pairs[2 * i]), bucket = static_cast<size_t>(pairs[2 * i + 1]);
    const bool next = bucket == layout.size(), last = bucket + 1 == layout.size();
    TORCH_CHECK(index < parameters && !there[index] && (next || last),
                "DistributedDataParallel: the layout of buckets that rank ", root,
                " has sent changed on its way here: a memory error, or a link without a checksum. Restart from a "
                "checkpoint");
    there[index] = true;
    if (next) layout.emplace_back();
    layout.back().push_back(index);
  }
  return layout;
}

// How many collectives the group has begun.
uint64_t sequence_of(c10d::ProcessGroup& group, const at::Device& device) {
  const auto backend = backend_of(group, device);
  TORCH_CHECK(backend, "DistributedDataParallel: timelines are not kept over a group without a backend for ", device);
  return backend->getSequenceNumberForGroup();
}

}  // namespace

// Gradients arrive in about the reverse order of the layers, so buckets in that order are good from the first pass on.
Reducer::Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<bool> sparse,
                 GroupPtr group, Options options)
    : parameters_(std::move(parameters)),
      names_(std::move(names)),
      sparse_(std::move(sparse)),
      options_(std::move(options)),
      group_(std::move(group)),
      mean_(make_mean(group_, parameters_.at(0).device(), options_.rank_order)),
      leaf_sums_(
          group_, options_.micro_batches, buckets_, names_,
          [this](size_t number) {
            begin_leaf_times();
            Timeline::BucketTimes& times = timeline_.buckets[number];
            const int64_t now = now_ns();
            if (times.ready == 0) times.ready = now;
            mark(times.launched, trace::Kind::kLaunched, now, static_cast<int>(number));
          },
          [this](size_t number) { return bucket_text(number); }),
      readiness_(parameters_.size()),
      usage_(parameters_.size(), parameters_.at(0).device()),
      unaveraged_(parameters_.size()),
      divisor_(group_->getSize()),
      hooks_(parameters_, [this](size_t index, const at::Tensor& arrived) { autograd_hook(index, arrived); }) {
  TORCH_CHECK(!options_.bucket_limits.empty(), "a reducer needs at least one bucket limit");
  TORCH_CHECK(!sharded() || std::count(sparse_.begin(), sparse_.end(), true) == 0,
              "DistributedDataParallel: sparse gradients have no shards: use zero_stage=1 or a dense gradient");
  check_carries_digests();
  unaveraged_.assume_averaged(parameters_);  // .grad may be set before the wrapper is made
  if (options_.check_drift) drift_.emplace(names_);
  set_buckets(layout_by_size());
}

Layout Reducer::layout_by_size() const {
  if (!options_.layout.empty()) return options_.layout;
  return make_layout(parts(), reversed_indices(parameters_.size()), options_.bucket_limits, sharded());
}

void Reducer::check_carries_digests() const {
  if (!options_.check_drift) return;
  TORCH_CHECK(mean_->carries_digests() && parameters_[0].is_cpu(),
              "DistributedDataParallel: check_drift=True needs "
              "parameters on the CPU (they are on ",
              parameters_[0].device(),
              ") and a group of backend ringdp, whose "
              "collectives carry checksums: leave it out, and call ringdp.check_replicas(model) now and then");
}

void Reducer::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook, bool always,
                                 std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  if (hook_) refuse("register_comm_hook or register_builtin_comm_hook can only be called once.");
  hook_ = std::make_unique<CommHook>(std::move(hook), patience);
  hook_always_ = always;
  if (!rebuilt_ && !layout_is_kept_ && !unfinished_ && layout_by_size() != layout_) set_buckets(layout_by_size());
}

void Reducer::use_comm_hook(bool used) {
  const std::lock_guard lock(mutex_);
  hook_used_ = used;
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

void Reducer::set_divisor_work(WorkPtr work) {
  const std::lock_guard lock(mutex_);
  divisor_.set_work(std::move(work));
}

void Reducer::set_divisor(double divisor) {
  const std::lock_guard lock(mutex_);
  divisor_.set(divisor);
}

// The layout of buckets, and when it changes.

// Between hosts and over other backends, fewer, larger buckets finish sooner, and a hook is called for each.
bool Reducer::reduces_in_place() const {
  const auto* const capabilities = capabilities_of(*group_, parameters_[0].device());
  const bool calls_per_bucket = hook_ != nullptr && hook_always_;
  return parameters_[0].is_cpu() && capabilities != nullptr && capabilities->maps_all_heaps() && !sharded() &&
         !calls_per_bucket && options_.micro_batches == 0;
}

std::vector<Part> Reducer::parts() const {
  const int64_t own_bucket =
      options_.own_bucket_bytes > 0 && reduces_in_place() ? options_.own_bucket_bytes : INT64_MAX;
  std::vector<Part> parts;
  std::map<std::pair<at::ScalarType, std::string>, int64_t> kinds;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& parameter = parameters_[index];
    const auto kind =
        kinds.try_emplace({parameter.scalar_type(), parameter.device().str()}, kinds.size()).first->second;
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    parts.push_back({bytes, kind, sparse_[index] || bytes >= own_bucket});
  }
  return parts;
}

void Reducer::set_buckets(const Layout& layout) {
  const c10::AutoGradMode no_grad(false);
  layout_ = layout;
  const bool anew = !buckets_.empty(), together = !options_.made_locally || rebuilt_ || layout_is_kept_;
  buckets_.clear();
  try {
    make_buckets(together);
    if (anew && together) reclaim_memory(*group_, parameters_[0].device());
  } catch (...) {  // a rank was lost, or memory has run out: buckets that are half made are not used
    buckets_.clear();
    throw;
  }
}

void Reducer::make_buckets(bool together) {
  used_.assign(parameters_.size(), false);
  const int ranks = group_->getSize();
  const bool of_leaves = options_.micro_batches > 0;
  const int64_t granularity = sharded()   ? options_.shard_block * ranks
                              : of_leaves ? LeafSums::granularity(ranks)
                                          : mean_->granularity();
  // Elsewhere views lie in memory that lasts, which devices may share.
  const bool in_place = !options_.gradient_as_bucket_view || reduces_in_place();
  const BucketShape shape{granularity, options_.shard_block, gradient_dtype_, in_place, of_leaves};
  places_.assign(parameters_.size(), {});
  for (const auto& members : layout_) {
    const bool sparse = sparse_[members.front()];
    buckets_.push_back(make_bucket(parameters_, members, sparse, shape));
    if (buckets_.back().keeps_memory()) allocate(buckets_.back(), *group_, together);
    for (size_t position = 0; position < members.size(); ++position) {
      places_[members[position]] = {buckets_.size() - 1, position};
    }
    if (options_.gradient_as_bucket_view && !of_leaves) adopt(buckets_.back());
  }
}

void Reducer::check_laid_out() const {
  if (!buckets_.empty()) return;
  backend::refuse(
      "DistributedDataParallel: its buckets could not be allocated, see the previous error: wrap the model again, "
      "or give the wrapper a new process group");
}

bool Reducer::rebuild_buckets() {
  check_finished();
  const std::lock_guard lock(mutex_);
  if (options_.micro_batches > 0 || arrival_.empty() || searches()) return false;
  return lay_out_by_arrival(0);
}

bool Reducer::lay_out_by_arrival(int root) {
  if (rebuilt_ || layout_is_kept_ || sharded() || !options_.layout.empty()) return false;
  rebuilt_ = true;
  const Layout own = arrival_.empty() ? layout_ : make_layout(parts(), arrival_, options_.bucket_limits);
  const Layout agreed = agree_on(own, parameters_.size(), *group_, parameters_[0].device(), root);
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
  shared_allocation_.reset();
  divisor_.reset();
  if (searches()) usage_.forget();
}

void Reducer::set_group(GroupPtr group) {
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  leaf_sums_.set_group(group_);
  mean_ = make_mean(group_, parameters_[0].device(), options_.rank_order);
  check_carries_digests();
  divisor_ = Divisor(group_->getSize());
  set_buckets(rebuilt_ || layout_is_kept_ || options_.micro_batches > 0 ? layout_ : layout_by_size());
  leaf_sums_.fit();
}

void Reducer::keep_layout() {
  const std::lock_guard lock(mutex_);
  const Layout by_size = layout_by_size();
  if (layout_ != by_size) set_buckets(by_size);
  layout_is_kept_ = true;
}

void Reducer::remove_hooks() {
  const std::lock_guard lock(mutex_);
  hooks_.remove();
}

// Introspection.

std::vector<Reducer::BucketInfo> Reducer::buckets() const {
  const std::lock_guard lock(mutex_);
  std::vector<BucketInfo> all;
  for (const Bucket& bucket : buckets_) {
    const at::Tensor& parameter = bucket.parameters.front();
    BucketInfo info;
    info.indices = bucket.indices;
    info.sparse = bucket.sparse;
    info.of_leaves = bucket.of_leaves;
    info.device = parameter.device().str();
    const auto size = static_cast<int64_t>(bucket.options.dtype().itemsize());
    info.dtype = c10::toString(c10::typeMetaToScalarType(bucket.options.dtype()));
    c10d::ProcessGroup* const group = bucket.of_leaves ? leaf_sums_.group_of_sums() : group_.get();
    info.shared = !bucket.sparse && group != nullptr &&
                  (offers_shared_memory(*group, parameter.device()) ||
                   (bucket.keeps_memory() && is_shared(*group, bucket.memory)));
    const size_t lengths = std::accumulate(bucket.lengths.begin(), bucket.lengths.end(), size_t{0});
    if (!bucket.sparse) info.bytes = static_cast<int64_t>(lengths) * size;
    if (bucket.keeps_memory()) info.memory_bytes = bucket.padded * size;
    all.push_back(std::move(info));
  }
  return all;
}

void Reducer::mark(int64_t& at, trace::Kind kind, int64_t time_ns, int bucket) {
  at = time_ns;
  record(kind, time_ns, bucket);
}

void Reducer::end_timeline() {
  mark(timeline_.finished, trace::Kind::kStepped, now_ns());
  if (most_timelines_ == 0) return;
  timeline_.sequence = sequence_of(*group_, parameters_[0].device());
  if (kept_timelines_.size() == most_timelines_) kept_timelines_.pop_front();
  kept_timelines_.push_back(timeline_);
}

void Reducer::keep_timelines(size_t most) {
  const std::lock_guard lock(mutex_);
  // Asked here, because a backend that does not count must not fail in the middle of a pass.
  if (most > 0) sequence_of(*group_, parameters_[0].device());
  most_timelines_ = most;
  kept_timelines_.clear();
}

std::vector<Timeline> Reducer::take_timelines() {
  const std::lock_guard lock(mutex_);
  const std::deque<Timeline> taken = std::exchange(kept_timelines_, {});
  return {taken.begin(), taken.end()};
}

void Reducer::sample_parameters(std::vector<at::Tensor> parameters) {
  const std::lock_guard lock(mutex_);
  sample_ = parameters.empty() ? nullptr : std::make_unique<ParameterSample>(std::move(parameters));
  stepped_alone_ = false;
}

void Reducer::note_stepped_alone() {
  const std::lock_guard lock(mutex_);
  stepped_alone_ = true;
}

void Reducer::set_sample_stride(uint64_t stride) {
  const std::lock_guard lock(mutex_);
  if (sample_) sample_->set_stride(stride);
}

bool Reducer::has_found() const {
  const std::lock_guard lock(mutex_);
  return sample_ && sample_->has_found();
}

Reducer::Sampled Reducer::take_sampled() {
  const std::lock_guard lock(mutex_);
  Sampled sampled;
  if (!sample_) return sampled;
  sampled.is_carried = drift_ || (options_.micro_batches == 0 &&
                                  std::any_of(buckets_.begin(), buckets_.end(),
                                              [&](const Bucket& bucket) { return can_carry_digests(bucket); }));
  sampled.stepped_alone = stepped_alone_;
  sampled.compared = sample_->compared();
  sampled.spent_ns = sample_->spent_ns();
  for (auto& found : sample_->take_found()) {
    const ParameterSample::Part part = sample_->part(found.part);
    sampled.found.emplace_back(std::move(found), part);
  }
  return sampled;
}

void Reducer::record(trace::Kind kind, int64_t time_ns, int bucket) const {
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

std::map<std::string, int64_t> Reducer::stats() const {
  const std::lock_guard lock(mutex_);
  return {{"rebuilt", rebuilt_}, {"unused_changed", unused_changed_}, {"launched", launched_}};
}

std::string Reducer::mean_name() const {
  const std::lock_guard lock(mutex_);
  return mean_->name();
}

std::vector<Unaveraged::Found> Reducer::unaveraged() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? unaveraged_.of(parameters_) : std::vector<Unaveraged::Found>{};
}

}  // namespace ringdp::reducer
