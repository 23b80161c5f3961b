#include "reducer/leaf_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backend/errors.h"

namespace ringdp::reducer {
namespace {

using plan::LeafNode;

std::vector<at::Tensor> flats_of(std::vector<LeafSum> sums) {
  std::sort(sums.begin(), sums.end(), [](const LeafSum& a, const LeafSum& b) { return a.node < b.node; });
  std::vector<at::Tensor> flats;
  for (const LeafSum& sum : sums) flats.push_back(sum.flat);
  return flats;
}

std::vector<int> sorted(std::vector<int> leaves) {
  std::sort(leaves.begin(), leaves.end());
  return leaves;
}

}  // namespace

void LeafSums::set_group(GroupPtr group) {
  set_group_of_sums(nullptr, false);
  all_ = std::move(group);
  if (micro_batches_ > 0) block_of_all_ = block_in_heap_of(*all_);
}

void LeafSums::fit() {
  for (size_t number = 0; number < held_.size(); ++number) {
    const int64_t wanted = reals(buckets_[number]);
    for (LeafSum& sum : held_[number]) {
      const int64_t kept = std::min(wanted, sum.flat.numel());
      if (sum.flat.numel() == wanted) continue;
      const at::Tensor fitted = memory(wanted, sum.flat.options());
      fitted.narrow(0, 0, kept).copy_(sum.flat.narrow(0, 0, kept));
      fitted.narrow(0, kept, wanted - kept).zero_();
      sum.flat = fitted;
    }
  }
}

void LeafSums::set_group_of_sums(GroupPtr group, bool along_tree) {
  expect({}, 0);
  group_ = std::move(group);
  how_sent_.along_tree = along_tree;
  if (group_) block_of_sums_ = block_in_heap_of(*group_);
}

void LeafSums::expect(std::vector<std::vector<int>> leaves, double divisor) {
  running_.clear();  // works keep the memory that they use
  next_ = 0;
  spoiled_ = false;
  how_sent_.divisor = divisor;
  expected_ = leaves.empty() ? nullptr : std::make_shared<const Allotment>(micro_batches_, std::move(leaves));
}

bool LeafSums::begin(int leaf) {
  if (!ahead_.empty()) abandon();  // the leaf before, whose end was not reached
  std::vector<int> leaves = leaves_;
  leaves.push_back(leaf);
  const auto roots = backend::guarded([&] { return plan::roots_of(micro_batches_, leaves); });
  root_ = *std::find_if(roots.begin(), roots.end(), [&](LeafNode root) { return root.contains({leaf, leaf + 1}); });
  leaf_ = leaf;
  used_.resize(names_.size());
  used_before_ = used_;
  taken_.assign(names_.size(), false);
  held_.resize(buckets_.size());
  ahead_.assign(buckets_.size(), std::nullopt);
  sends_ = expected_ && !was_sent() && !spoiled_ && sorted(std::move(leaves)) == expected_of_this_rank();
  completes_root_ = false;
  if (expected_) {
    const auto& mine = expected_->roots_of(group_->getRank());
    completes_root_ = std::find(mine.begin(), mine.end(), root_) != mine.end();
  }
  return sends_;
}

void LeafSums::complete(size_t number, const at::Tensor& arrived, bool seen) {
  const Bucket& bucket = buckets_[number];
  if (!sends_ || ahead_[number] || bucket.elements == 0) return;
  const at::Tensor taken = seen ? take_copy(bucket) : take(bucket, arrived);
  ahead_[number] = with_leaf(held_[number], bucket, taken, /*in_place=*/false);
  send_complete();
}

void LeafSums::add() {
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (ahead_[number] || buckets_[number].elements == 0) continue;
    // Memory that is being sent does not change, as links compute checksums of it.
    const at::Tensor taken = take(buckets_[number], /*arrived=*/{});
    ahead_[number] = with_leaf(held_[number], buckets_[number], taken, /*in_place=*/!sends_ && !was_sent());
    if (!sends_) held_[number] = *std::exchange(ahead_[number], std::nullopt);
    send_complete();
  }
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (ahead_[number]) held_[number] = *std::move(ahead_[number]);
  }
  leaves_.push_back(leaf_);
  ahead_.clear();
  sends_ = false;
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void LeafSums::check_leaf() const {
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const at::Tensor& gradient = bucket.parameters[i].grad();
      if (gradient.defined()) check_fits(gradient, bucket.options, names_[bucket.indices[i]], bucket.sharded);
    }
  }
}

void LeafSums::add_round(const std::vector<int>& leaves, const OnBucket& done) {
  std::vector<std::vector<int>> by_rank;
  for (const int leaf : leaves) {
    by_rank.push_back(leaf < 0 ? std::vector<int>{} : std::vector<int>{leaf});
    if (leaf >= 0) sharded_.push_back(leaf);
  }
  const bool has_leaf = leaves[all_->getRank()] >= 0;
  const auto round = std::make_shared<const Allotment>(Allotment::of_round(micro_batches_, std::move(by_rank)));
  held_.resize(buckets_.size());
  running_.resize(buckets_.size());
  const auto start = [&](size_t number) {
    Sums own;
    if (has_leaf) own.push_back({{leaf_, leaf_ + 1}, take(buckets_[number], /*arrived=*/{})});
    send(number, std::move(own), all_, round, std::nullopt);
  };
  in_turn(start, [&](size_t number) {
    const std::unique_ptr<RootExchange> exchange = std::exchange(running_[number], nullptr);
    held_[number] = with_round(held_[number], exchange->arrived(), buckets_[number]);
    done(number);
  });
  if (has_leaf) leaves_.push_back(leaf_);
  ahead_.clear();
}

void LeafSums::abandon() {
  spoiled_ |= sends_ && was_sent();
  used_ = used_before_;
  ahead_.clear();
  failed_ = nullptr;
  sends_ = false;
}

// The leaf goes on where its group fails: without it, it would have to be computed again.
void LeafSums::send_complete() {
  if (!sends_ || failed_) return;
  for (; next_ < buckets_.size(); ++next_) {
    if (buckets_[next_].elements == 0) continue;
    if (!ahead_[next_]) return;
    try {
      send_ahead(next_, *ahead_[next_]);
    } catch (...) {
      failed_ = std::current_exception();
      return;
    }
  }
}

void LeafSums::send_ahead(size_t bucket, Sums sums) { send(bucket, std::move(sums), group_, expected_, how_sent_); }

void LeafSums::send(size_t bucket, Sums sums, const GroupPtr& group, AllotmentPtr allotment,
                    std::optional<Ahead> ahead) {
  running_.resize(buckets_.size());
  launched_(bucket);
  try {
    running_[bucket] =
        std::make_unique<RootExchange>(group, buckets_[bucket], std::move(allotment), flats_of(std::move(sums)), ahead);
  } catch (c10::DistBackendError& error) {
    error.add_context(describe_(bucket));
    throw;
  }
}

bool LeafSums::send_rest() {
  if (!expected_) return true;
  held_.resize(buckets_.size());
  const bool right = !spoiled_ && sorted(leaves_) == expected_of_this_rank();
  for (; next_ < buckets_.size(); ++next_) {
    const Bucket& bucket = buckets_[next_];
    if (bucket.elements == 0) continue;
    Sums sums = right ? held_[next_] : Sums{};
    for (const LeafNode root : right ? std::vector<LeafNode>{} : expected_->roots_of(group_->getRank())) {
      sums.push_back({root, memory(reals(bucket), bucket.options.dtype(type_of(root, bucket)))});  // to be dropped
    }
    send_ahead(next_, std::move(sums));
  }
  return right;
}

bool LeafSums::left_alone(size_t parameter, const at::Tensor& gradient) const {
  return gradient.is_same(taken_[parameter] ? stand_in(parameter) : at::Tensor());
}

// Once there is a group of sums, shared: it is reduced there without a copy, and later steps use it again.
at::Tensor LeafSums::memory(int64_t elements, const at::TensorOptions& options) const {
  return step_memory(group_.get(), elements, options);
}

// The memory of a bucket's only gradient; undefined if it has to be copied.
at::Tensor LeafSums::take_memory(const Bucket& bucket, const at::Tensor& arrived) {
  at::Tensor& gradient = bucket.parameters[0].mutable_grad();
  if (!bucket.is_one_gradient() || !gradient.defined() || gradient.use_count() > 1) return {};
  if (completes_root_ && !bucket.allocates_shared()) return {};  // it does not lie where sums are sent from
  check_fits(gradient, bucket.options, names_[bucket.indices[0]], /*widens=*/bucket.sharded);
  at::Tensor memory = memory_of_gradient(bucket, arrived);
  if (!memory.defined()) return {};
  used_[bucket.indices[0]] = taken_[bucket.indices[0]] = true;
  gradient = stand_in(bucket.indices[0]);
  return as_reals(memory);
}

at::Tensor LeafSums::take(const Bucket& bucket, const at::Tensor& arrived) {
  const at::Tensor memory = take_memory(bucket, arrived);
  return memory.defined() ? memory : take_copy(bucket);
}

at::Tensor LeafSums::take_copy(const Bucket& bucket) {
  const at::Tensor flat = memory(bucket.padded, bucket.options);
  clear_padding(flat, bucket);
  std::vector<at::Tensor> places = views_into(flat, bucket), views, gradients;
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t index = bucket.indices[i];
    at::Tensor& gradient = bucket.parameters[i].mutable_grad();
    if (!gradient.defined()) {
      fill_absent(places[i]);
      continue;
    }
    check_fits(gradient, bucket.options, names_[index], /*widens=*/bucket.sharded);
    used_[index] = taken_[index] = true;
    views.push_back(places[i]);
    gradients.push_back(std::exchange(gradient, stand_in(index)).detach());
  }
  if (!views.empty()) at::_foreach_copy_(views, gradients);
  return as_reals(flat);
}

// `held` with the gradients of the leaf, `taken`, added up to root_. in_place: memory of a sum that is held may be
// overwritten; otherwise the gradients' own memory receives the sum, if it is wide enough.
LeafSums::Sums LeafSums::with_leaf(const Sums& held, const Bucket& bucket, const at::Tensor& taken, bool in_place) {
  std::vector<LeafNode> nodes = {{leaf_, leaf_ + 1}};
  std::vector<at::Tensor> parts = {taken};
  Sums sums;
  for (const LeafSum& sum : held) {
    if (!root_.contains(sum.node)) {
      sums.push_back(sum);
      continue;
    }
    nodes.push_back(sum.node);
    parts.push_back(sum.flat);
  }
  at::Tensor target = taken;
  if (nodes.size() > 1) {
    const at::ScalarType raw = real_type(bucket), wide = wide_of(raw);
    const auto last = in_place ? parts.end() : parts.begin() + 1;
    const auto found = std::find_if(parts.begin(), last, [&](const at::Tensor& p) { return p.scalar_type() == wide; });
    target = found != last ? *found : memory(reals(bucket), bucket.options.dtype(wide));
    add_up(parts, plan::add_program(root_, nodes), raw, target, 0);
  }
  sums.push_back({root_, target});
  return sums;
}

// Parts that have arrived share memory with those of all ranks, so none of them is kept.
LeafSums::Sums LeafSums::with_round(const Sums& held, const Sums& arrived, const Bucket& bucket) const {
  const at::ScalarType raw = real_type(bucket), wide = wide_of(raw);
  Sums sums;
  for (const LeafNode root : backend::guarded([&] { return plan::roots_of(micro_batches_, sharded_); })) {
    std::vector<LeafNode> nodes;
    std::vector<at::Tensor> parts;
    at::Tensor target;
    const auto add = [&](const LeafSum& sum) {
      if (!root.contains(sum.node)) return false;
      nodes.push_back(sum.node);
      parts.push_back(sum.flat);
      return true;
    };
    for (const LeafSum& sum : held) {
      if (add(sum) && sum.flat.scalar_type() == wide) target = sum.flat;
    }
    const bool is_held = !nodes.empty();
    for (const LeafSum& sum : arrived) add(sum);
    if (nodes.size() == 1) {
      target = is_held ? parts[0] : parts[0].clone();
    } else {
      if (!target.defined()) target = at::empty({parts[0].numel()}, bucket.options.dtype(wide));
      add_up(parts, plan::add_program(root, nodes), raw, target, 0);
    }
    sums.push_back({root, target});
  }
  return sums;
}

std::vector<at::Tensor> LeafSums::mean_of_rounds(double divisor) {
  std::vector<at::Tensor> means(buckets_.size());
  for (const size_t number : buckets_with_elements()) {
    const Bucket& bucket = buckets_[number];
    const Sums sums = std::exchange(held_[number], {});
    TORCH_INTERNAL_ASSERT(sums.size() == 1 && sums[0].node == (LeafNode{0, micro_batches_}), "rounds lack a leaf");
    const at::Tensor& sum = sums[0].flat;
    const at::ScalarType raw = real_type(bucket);
    const at::Tensor mean = sum.scalar_type() == raw ? sum : at::empty({sum.numel()}, bucket.options.dtype(raw));
    add_up({sum}, {0}, raw, mean, divisor);
    means[number] = elements_of(mean, bucket);
  }
  drop();
  return means;
}

void LeafSums::in_turn(const OnBucket& start, const OnBucket& add) const {
  const std::vector<size_t> numbers = buckets_with_elements();
  if (!numbers.empty()) start(numbers.front());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i + 1 < numbers.size()) start(numbers[i + 1]);
    add(numbers[i]);
  }
}

std::vector<size_t> LeafSums::buckets_with_elements() const {
  std::vector<size_t> numbers;
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (buckets_[number].elements > 0) numbers.push_back(number);
  }
  return numbers;
}

std::vector<at::Tensor> LeafSums::average(const std::vector<std::vector<int>>& leaves, double divisor, bool as_sent,
                                          bool keep, const OnBucket& done) {
  if (!sharded_.empty()) return mean_of_rounds(divisor);
  held_.resize(buckets_.size());
  AllotmentPtr allotment = expected_;
  if (!as_sent || !expected_) {
    running_.clear();
    allotment = std::make_shared<const Allotment>(micro_batches_, leaves);
  }
  running_.resize(buckets_.size());
  const auto start = [&](size_t number) {
    Sums own = keep ? held_[number] : std::exchange(held_[number], {});
    if (running_[number]) return;
    if (group_ && how_sent_.along_tree && allotment->reduced_as(buckets_[number])) {
      send(number, std::move(own), group_, allotment, Ahead{true, divisor});
    } else {
      send(number, std::move(own), all_, allotment, std::nullopt);
    }
  };
  in_turn(start, [&](size_t number) { running_[number]->fold(divisor); });
  std::vector<at::Tensor> means(buckets_.size());
  for (const size_t number : buckets_with_elements()) {
    means[number] = std::exchange(running_[number], nullptr)->finish();
    done(number);
  }
  next_ = 0;
  spoiled_ = false;
  if (!keep) drop();
  return means;
}

void LeafSums::drop() {
  spoiled_ |= was_sent();
  if (!expected_) running_.clear();  // of a round that has failed
  leaves_.clear();
  sharded_.clear();
  held_.clear();
  ahead_.clear();
  used_.clear();
  sends_ = false;
}

std::vector<bool> LeafSums::used() const {
  std::vector<bool> used = used_;
  used.resize(names_.size());
  return used;
}

int64_t LeafSums::bytes() const {
  int64_t bytes = 0;
  for (const auto& of_bucket : held_) {
    for (const LeafSum& sum : of_bucket) bytes += static_cast<int64_t>(sum.flat.nbytes());
  }
  return bytes;
}

}  // namespace ringdp::reducer
