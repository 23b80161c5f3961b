// Reducer: one step, from the end of a forward pass to averaged gradients in .grad.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "reducer/copies.h"
#include "reducer/error_messages.h"
#include "reducer/reducer.h"

namespace ringdp::reducer {
namespace {

// Returns 0 only for 0.
uint32_t folded(uint64_t digest) {
  const auto half = static_cast<uint32_t>(digest ^ digest >> 32);
  return half != 0 || digest == 0 ? half : 1;
}

}  // namespace

void Reducer::prepare_for_forward() {
  const std::lock_guard lock(mutex_);
  if (const auto index = unaveraged_.stepped(parameters_)) {
    unaveraged_.forget();
    refuse("DistributedDataParallel: " + came_late(names_[*index]));
  }
  ++timeline_.step;
  mark(timeline_.forward, trace::Kind::kForward, now_ns());
}

void Reducer::prepare_for_backward(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard lock(mutex_);
  check_laid_out();
  expecting_ = true;
  unaveraged_.begin_synchronised();
  unused_marked_ = false;
  next_ = 0;
  launched_ = 0;
  readiness_.begin();
  if (static_graph_first_pass()) readiness_.forget_firings();
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.indices.size();
    bucket.uncopied.clear();
    release_memory(bucket);
    renew_views(bucket);
  }
  wait_for_running();
  running_.clear();
  sinks_.clear();
  running_.resize(buckets_.size());
  if (drift_) drift_->begin(buckets_.size());
  agreement_.reset();
  differs_ = false;
  timeline_.begin_backward(now_ns(), buckets_.size());
  record(trace::Kind::kBackward, timeline_.backward);
  start_shared_allocation(*group_);
  if (searches()) search_unused(outputs);
}

// Gradients that are reduced in place should lie in shared memory.
void Reducer::start_shared_allocation(c10d::ProcessGroup& group) {
  std::vector<size_t> sizes;
  for (const Bucket& bucket : buckets_) {
    const bool is_new = std::count(sizes.begin(), sizes.end(), bucket.bytes()) == 0;
    if (bucket.allocates_shared() && is_new) sizes.push_back(bucket.bytes());
  }
  shared_allocation_ = share_gradients_of(group, parameters_[0].device(), std::move(sizes));
}

void Reducer::search_unused(const std::vector<at::Tensor>& outputs) {
  std::vector<size_t> found = hooks_.unreachable_from(outputs);
  if (found.empty()) {
    TORCH_WARN_ONCE(
        "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters "
        "in the forward pass. This flag costs a walk over the autograd graph in every step: leave it out if "
        "your model never has unused parameters.");
  }
  if (timeline_.step > 1 && found != unused_) unused_changed_ = true;
  unused_ = std::move(found);
}

void Reducer::autograd_hook(size_t index, const at::Tensor& arrived) {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  if (options_.micro_batches > 0) return arrived_in_leaf(index, arrived);
  if (tracks_usage() && parameters_[index].grad().defined()) usage_.mark(index);
  if (!expecting_) return unaveraged_.add(index, parameters_[index]);
  refuse_distributed_autograd();
  readiness_.note_firing(index);
  if (static_graph_ && !count_in_static_graph(index)) return;
  if (!std::exchange(unused_marked_, true)) {
    for (const size_t unused : unused_) mark_ready(unused, Gradient::kAsItIs);
  }
  mark_ready(index, Gradient::kFresh, arrived);
  if (all_ready()) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      {
        const std::lock_guard end_lock(mutex_);
        const c10::AutoGradMode no_grad_at_end(false);
        finish();
      }
      if (after_backward_) after_backward_();
    });
  }
}

// Returns whether this firing completes the gradient.
bool Reducer::count_in_static_graph(size_t index) {
  if (static_graph_first_pass()) {
    unfinished_ = true;  // until delay_all_reduce()
    readiness_.count_firing(index);
    return false;
  }
  const auto firing = readiness_.count_down(index);
  if (firing == Readiness::Firing::kTooMany) refuse(graph_changed(names_[index]));
  return firing == Readiness::Firing::kLast;
}

void Reducer::mark_ready(size_t index, Gradient gradient, const at::Tensor& arrived) {
  if (!readiness_.mark(index)) refuse(marked_twice(names_[index], index));
  unfinished_ = true;
  take(index, gradient, arrived);
  const size_t number = places_[index].bucket;
  if (--buckets_[number].pending == 0) bucket_ready(number);
}

// Copies the gradient into the bucket, unless it is there already or can be reduced in place. The .grad of a parameter
// that perhaps no rank has used is not changed.
void Reducer::take(size_t index, Gradient kind, const at::Tensor& arrived) {
  Bucket& bucket = buckets_[places_[index].bucket];
  const at::Tensor& parameter = parameters_[index];
  at::Tensor& gradient = parameter.mutable_grad();
  if (bucket.sparse) {
    TORCH_CHECK(!gradient.defined() || gradient.is_sparse(), "DistributedDataParallel: the gradient of ", names_[index],
                " is dense, and its layer was made with sparse=True");
    bucket.memory = gradient.defined() ? gradient : absent_sparse(parameter);
    return;
  }
  if (gradient.defined()) check_fits(gradient, bucket.options, names_[index], bucket.sharded);
  const bool seen = hooks_.has_others(index);  // as that of another wrapper of the model, which reads .grad
  if (bucket.in_place && kind == Gradient::kFresh && gradient.defined() && !seen && take_in_place(bucket, arrived)) {
    if (bucket.sharded) gradient.reset();
    return;
  }
  if (bucket.in_place || !bucket.memory.defined()) allocate(bucket, *group_, /*together=*/false);
  const size_t position = places_[index].position;
  const at::Tensor& view = bucket.views[position];
  if (!gradient.defined()) return fill_absent(view);
  if (gradient.is_alias_of(bucket.memory)) return;
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(
        "Using DistributedDataParallel with create_graph=True is not well-supported. The higher-order gradient "
        "will not be synchronized across ranks.");
  }
  bucket.uncopied.push_back(position);
  if (!options_.batched_copy) copy_waiting(bucket);
}

void Reducer::copy_waiting(Bucket& bucket) {
  std::vector<at::Tensor> views, gradients;
  for (const size_t position : bucket.uncopied) {
    views.push_back(bucket.views[position]);
    gradients.push_back(bucket.parameters[position].grad());
  }
  copy_tensors(views, gradients);
  for (const size_t position : bucket.uncopied) {
    at::Tensor& gradient = bucket.parameters[position].mutable_grad();
    if (bucket.sharded) {
      gradient.reset();
    } else if (options_.gradient_as_bucket_view) {
      gradient = bucket.views[position];
    }
  }
  bucket.uncopied.clear();
}

void Reducer::bucket_ready(size_t number) {
  copy_waiting(buckets_[number]);
  mark(timeline_.buckets[number].ready, trace::Kind::kReady, now_ns(), static_cast<int>(number));
  if (number != next_) return;  // not its turn: ranks launch in the same order
  for (; next_ < buckets_.size() && buckets_[next_].pending == 0; ++next_) {
    if (!options_.overlap) continue;
    if (sharded() && next_ > 0) finish_bucket(next_ - 1);  // at most one bucket travels while another one fills
    launch(next_);
  }
}

void Reducer::launch(size_t number) {
  const Bucket& bucket = buckets_[number];
  const auto is_unused = [&](size_t index) { return std::count(unused_.begin(), unused_.end(), index) > 0; };
  if (options_.skip_unused && std::all_of(bucket.indices.begin(), bucket.indices.end(), is_unused)) return;
  mark(timeline_.buckets[number].launched, trace::Kind::kLaunched, now_ns(), static_cast<int>(number));
  running_[number] = for_bucket(number, [&] { return start(bucket, bucket.memory, number, digests_of(number)); });
  ++launched_;
}

Mean::DigestsPtr Reducer::digests_of(size_t number) {
  const Bucket& bucket = buckets_[number];
  if (!can_carry_digests(bucket)) return nullptr;
  const uint64_t agreed = agreement_ ? 0 : agreed_.load();
  if (drift_) {
    const auto digests = drift_->take(number, bucket, bucket.memory, agreed);
    if (agreed != 0) agreement_ = digests;
    return digests;
  }
  if (agreement_) return nullptr;
  const PassDigest own{folded(agreed), sample_word()};
  if (own.bits() == 0) return nullptr;
  agreement_ = std::make_shared<backend::Capabilities::Digests>();
  agreement_->own = own.bits();
  agreement_->with_sums = false;
  return agreement_;
}

uint32_t Reducer::sample_word() {
  if (!sample_) return 0;
  stepped_alone_ |= unaveraged_.stepped_kept(parameters_);
  // A bucket that is not the first may come after a step inside this pass.
  const bool maybe_stepped = launched_ > 0 && (make_sinks_ || optimizer_in_backward_);
  return stepped_alone_ || maybe_stepped ? sample_->word_without_checksum() : sample_->word();
}

void Reducer::compare_digests() {
  std::vector<uint64_t> agreed;
  std::vector<uint32_t> samples;
  for (const uint64_t bits : agreement_->all) {
    const PassDigest digest = PassDigest::of(bits);
    agreed.push_back(digest.agreed);
    samples.push_back(digest.sample);
  }
  differs_ = !odd_ranks(agreed).empty();
  if (sample_) sample_->compare(samples, unaveraged_.passes());
}

// `flat`: the bucket's memory, or another tensor of the same size.
std::unique_ptr<Reduction> Reducer::start(const Bucket& bucket, const at::Tensor& flat, size_t number,
                                          Mean::DigestsPtr digests) {
  if (calls_hook()) {
    const at::Tensor shown = bucket.sparse ? flat : flat.narrow(0, 0, bucket.elements);
    const int64_t expected = bucket.sharded ? bucket.padded / group_->getSize() : shown.numel();
    return hook_->start(bucket, shown, number, buckets_.size(), expected);
  }
  if (bucket.sparse) return start_sparse_mean(*group_, flat, divisor_.get());
  if (flat.numel() == 0) return nullptr;  // parameters without elements
  if (bucket.sharded) return start_scatter(as_reals(flat), number, std::move(digests));
  return mean_->start(as_reals(flat), divisor_.get(), std::move(digests));
}

void Reducer::finish_bucket(size_t number) {
  Bucket& bucket = buckets_[number];
  if (auto running = std::move(running_[number])) {
    const at::Tensor result = for_bucket(number, [&] { return running->finish(); });
    mark(timeline_.buckets[number].done, trace::Kind::kDone, running->ended_ns(), static_cast<int>(number));
    if (drift_) differs_ |= !drift_->check(number, bucket, result, timeline_.step, *group_);
    bucket.sharded ? take_part(number, result) : write_back(bucket, result);
  }
  release_memory(bucket);
}

void Reducer::write_back(Bucket& bucket, const at::Tensor& result) {
  // A parameter that no rank has used keeps its .grad.
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

void Reducer::delay_all_reduce() {
  {
    const std::lock_guard lock(mutex_);
    const c10::AutoGradMode no_grad(false);
    if (!expecting_) return;
    unused_.clear();
    for (size_t index = 0; index < parameters_.size(); ++index) {
      const bool unused = readiness_.firings(index) == 0;
      if (unused) unused_.push_back(index);
      mark_ready(index, unused ? Gradient::kAsItIs : Gradient::kFresh);
    }
    finish();
  }
  if (after_backward_) after_backward_();
}

void Reducer::backward_without_loss() {
  {
    const std::lock_guard lock(mutex_);
    const c10::AutoGradMode no_grad(false);
    for (const size_t index : readiness_.missing()) mark_ready(index, Gradient::kAsItIs);
    finish();
  }
  if (after_backward_) after_backward_();
}

void Reducer::finish() {
  const auto forget_divisor = c10::make_scope_exit([this] { divisor_.reset(); });
  expecting_ = false;
  shared_allocation_.reset();
  mark(timeline_.computed, trace::Kind::kComputed, now_ns());
  start_usage();
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (!options_.overlap) launch(number);
    finish_bucket(number);
  }
  if (drift_) drift_->check_sums(buckets_, timeline_.step, *group_);
  if (!drift_ && agreement_) compare_digests();
  if (sharded()) note_used();
  unaveraged_.mark_averaged(parameters_);
  usage_.wait();
  if (searches()) usage_.forget();
  static_graph_known_ = static_graph_;
  arrival_ = readiness_.order();
  complete_arrival();
  unfinished_ = false;  // not if a signal handler has thrown: collectives that are under way use the buckets
  end_timeline();
}

void Reducer::start_usage() {
  if (!searches() && !(static_graph_first_pass() && !shadowed_first_)) return;
  if (hook_) hook_->wait();
  usage_.start(*group_);
}

void Reducer::keep_gradients() {
  const std::lock_guard lock(mutex_);
  unaveraged_.begin_kept();
}

void Reducer::check_finished() const {
  const std::lock_guard lock(mutex_);
  if (unfinished_) refuse(unfinished_text() + "\n" + kAfterAnException);
}

bool Reducer::is_static_graph_first_pass() const {
  const std::lock_guard lock(mutex_);
  return static_graph_first_pass();
}

void Reducer::stop_shared_allocation() {
  const std::lock_guard lock(mutex_);
  shared_allocation_.reset();
}

// A joined rank calls the same collectives in the same order as launch() and finish() on the other ranks, and in the
// same memory where devices share it. It contributes nothing and discards results.
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
    running.push_back(
        start(bucket, nothing[number], number,
              drift_ && can_carry_digests(bucket) ? drift_->abstain(number, bucket, nothing[number]) : nullptr));
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
    const at::Tensor result = running[number]->finish();
    if (drift_) drift_->check(number, buckets_[number], result, timeline_.step, *group_);
    if (kept[number].defined()) nothing[number].copy_(kept[number]);
  }
  if (drift_) drift_->check_sums(buckets_, timeline_.step, *group_);
  usage_.wait();
  shadowed_first_ = static_graph_;
  divisor_.reset();
}

// Sharded gradients (ZeRO stage 2).

std::unique_ptr<Reduction> Reducer::start_scatter(const at::Tensor& flat, size_t number, Mean::DigestsPtr digests) {
  const double divisor = divisor_.get();  // first, as it may throw: nothing counts as stepped yet
  if (make_sinks_ && sinks_.empty()) sinks_ = make_sinks_();
  if (number >= sinks_.size() || !sinks_[number]) return mean_->start_scatter(flat, divisor, std::move(digests));
  // Parameters change from here on: autograd must not use what it saved of them in this pass.
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

// After a pass that failed: returns when no sink steps anything any more.
void Reducer::wait_for_running() {
  for (const auto& running : running_) {
    if (!make_sinks_ || !running) continue;
    try {
      running->finish();
    } catch (const std::exception&) {  // a failed reduction steps nothing more either
    }
  }
}

void Reducer::set_on_shard(std::function<Sinks()> sinks, OnShard on_shard) {
  const std::lock_guard lock(mutex_);
  make_sinks_ = std::move(sinks);
  on_shard_ = std::move(on_shard);
}

// A parameter that no rank has used in any pass has no gradient, so an optimizer skips it.
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

// Errors.

std::string Reducer::unfinished_text() const {
  if (static_graph_first_pass()) return first_static_pass_unfinished();
  const std::vector<size_t> missing = readiness_.missing();
  if (missing.empty()) return interrupted();
  std::vector<std::string> names;
  for (const size_t index : missing) names.push_back(names_[index]);
  return unfinished({group_->getRank(), static_graph_, options_.find_unused}, names, missing);
}

std::string Reducer::bucket_text(size_t number) const {
  return "for bucket " + std::to_string(number) + " of " + std::to_string(buckets_.size()) +
         " of DistributedDataParallel: " + gradients_of(names_, buckets_[number].indices);
}

void Reducer::refuse(const std::string& text) const {
  error_ = text;
  TORCH_CHECK(false, text);
}

}  // namespace ringdp::reducer
