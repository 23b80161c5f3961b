#include "reducer/leaf_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "backend/compat.h"
#include "backend/errors.h"
#include "backend/tensors.h"
#include "kernels/fold_tree.h"

namespace ringdp::reducer {
namespace {

using at::ScalarType;
using plan::AddProgram;
using plan::LeafNode;

ScalarType wide_of(ScalarType type) { return at::isReducedFloatingType(type) ? at::kFloat : type; }

ScalarType real_type(const Bucket& bucket) { return c10::toRealValueType(bucket.options.dtype().toScalarType()); }

int64_t reals(const Bucket& bucket) {
  return bucket.padded * (bucket.options.dtype().toScalarType() == real_type(bucket) ? 1 : 2);
}

// What a root of a bucket is sent as.
ScalarType type_of(LeafNode root, const Bucket& bucket) {
  return root.leaves() == 1 ? real_type(bucket) : wide_of(real_type(bucket));
}

void add_on_cpu(const std::vector<at::Tensor>& parts, const AddProgram& program, ScalarType raw, const at::Tensor& to,
                double divisor) {
  std::vector<kernels::TreeSource> sources;
  for (const at::Tensor& part : parts) sources.push_back({part.const_data_ptr(), part.scalar_type() != raw});
  kernels::TreeArgs args;
  args.srcs = sources;
  args.program = program;
  args.dst = to.data_ptr();
  args.count = to.numel();
  args.dtype = backend::checked_dtype(at::empty({0}, to.options().dtype(raw)), "mean");
  args.wide_dst = to.scalar_type() != raw;
  args.divisor = divisor;
  backend::guarded([&] { kernels::fold_tree(args); });
}

// Adds up parts along the tree into `to`, on the CPU by the kernel, elsewhere by torch's element-wise operations in the
// same order and precision. Parts and `to` have the type `raw` or are wide; `divisor` 0 divides by nothing.
void add_up(const std::vector<at::Tensor>& parts, const AddProgram& program, ScalarType raw, const at::Tensor& to,
            double divisor) {
  if (to.device().is_cpu()) return add_on_cpu(parts, program, raw, to, divisor);
  std::vector<at::Tensor> sums;
  for (const int word : program) {
    if (word != plan::kAdd) {
      sums.push_back(parts[word].to(wide_of(raw)));
      continue;
    }
    const at::Tensor right = std::move(sums.back());
    sums.pop_back();
    sums.back() = sums.back() + right;
  }
  to.copy_(divisor == 0 ? sums.front() : sums.front() / divisor);
}

// One bucket whose shards travel.
class RootExchange {
 public:
  RootExchange(const LeafSums::GroupPtr& group, const Bucket& bucket, const std::vector<std::vector<LeafNode>>& roots,
               const std::vector<at::Tensor>& own_roots)
      : group_(group), bucket_(bucket), shard_(reals(bucket) / group->getSize()) {
    std::vector<int64_t> to_lengths;
    int64_t bytes = 0;
    for (const auto& of_rank : roots) {
      const int64_t before = bytes;
      for (const LeafNode root : of_rank) {
        bytes += shard_ * static_cast<int64_t>(c10::elementSize(type_of(root, bucket)));
        roots_.push_back(root);
      }
      to_lengths.push_back(bytes - before);
    }
    sent_ = by_owner(own_roots);
    arrived_ = at::empty({bytes}, bucket.options.dtype(at::kByte));
    std::vector<int64_t> from_lengths(group->getSize(), sent_.numel() / group->getSize());
    shuffle_ = backend::exchange_parts(*group_, arrived_, sent_, std::move(to_lengths), std::move(from_lengths));
  }

  // Adds up what has arrived, by the program of all roots, and starts to gather it, if every rank is to have it.
  void fold(const AddProgram& program, double divisor) {
    shuffle_->wait();
    sent_.reset();
    std::vector<at::Tensor> parts;
    int64_t at = 0;
    for (const LeafNode root : roots_) {
      const int64_t bytes = shard_ * static_cast<int64_t>(c10::elementSize(type_of(root, bucket_)));
      parts.push_back(arrived_.narrow(0, at, bytes).view(type_of(root, bucket_)));
      at += bytes;
    }
    mean_ = at::empty({shard_}, bucket_.options.dtype(real_type(bucket_)));
    add_up(parts, program, real_type(bucket_), mean_, divisor);
    arrived_.reset();
    if (bucket_.sharded) return;
    whole_ = at::empty({reals(bucket_)}, mean_.options());
    at::Tensor to = whole_.view(at::kByte), from = mean_.view(at::kByte);
    gather_ = backend::gather_parts(*group_, to, from);
  }

  // Complex numbers again.
  at::Tensor finish() {
    if (gather_) gather_->wait();
    const at::Tensor result = gather_ ? whole_ : mean_;
    return reals(bucket_) == bucket_.padded ? result : at::view_as_complex(result.view({-1, 2}));
  }

 private:
  // All roots' bytes for rank 0, then for rank 1, ...
  at::Tensor by_owner(const std::vector<at::Tensor>& own_roots) const {
    if (own_roots.size() == 1) return own_roots.front().view(at::kByte);
    std::vector<at::Tensor> pieces;
    for (int rank = 0; rank < group_->getSize(); ++rank) {
      for (const at::Tensor& root : own_roots) {
        pieces.push_back(root.narrow(0, rank * shard_, shard_).view(at::kByte));
      }
    }
    return pieces.empty() ? at::empty({0}, bucket_.options.dtype(at::kByte)) : at::cat(pieces);
  }

  const LeafSums::GroupPtr group_;
  const Bucket& bucket_;
  const int64_t shard_;  // real numbers of each root that one rank adds up
  std::vector<LeafNode> roots_;
  at::Tensor sent_, arrived_, mean_, whole_;
  c10::intrusive_ptr<c10d::Work> shuffle_, gather_;
};

}  // namespace

void LeafSums::add(int leaf, const std::vector<Bucket>& buckets, const std::vector<std::string>& names) {
  leaves_.push_back(leaf);
  const auto roots = backend::guarded([&] { return plan::roots_of(micro_batches_, leaves_); });
  const auto holds_leaf = [&](LeafNode root) { return root.contains({leaf, leaf + 1}); };
  const LeafNode root = *std::find_if(roots.begin(), roots.end(), holds_leaf);
  used_.resize(names.size());
  held_.resize(buckets.size());
  for (size_t number = 0; number < buckets.size(); ++number) {
    if (buckets[number].elements == 0) continue;
    merge(held_[number], buckets[number], {{leaf, leaf + 1}, take(buckets[number], names)}, root);
  }
}

at::Tensor LeafSums::take(const Bucket& bucket, const std::vector<std::string>& names) {
  const at::Tensor flat = at::empty({bucket.padded}, bucket.options);
  clear_padding(flat, bucket);
  std::vector<at::Tensor> places = views_into(flat, bucket), views, gradients;
  for (size_t i = 0; i < places.size(); ++i) {
    at::Tensor& gradient = bucket.parameters[i].mutable_grad();
    if (!gradient.defined()) {
      fill_absent(places[i]);
      continue;
    }
    check_fits(gradient, bucket.options, names[bucket.indices[i]], /*widens=*/bucket.sharded);
    used_[bucket.indices[i]] = true;
    views.push_back(places[i]);
    gradients.push_back(std::exchange(gradient, at::Tensor()).detach());
  }
  if (!views.empty()) at::_foreach_copy_(views, gradients);
  return as_reals(flat);
}

void LeafSums::merge(std::vector<Sum>& held, const Bucket& bucket, Sum added, LeafNode root) {
  std::vector<LeafNode> nodes = {added.node};
  std::vector<at::Tensor> parts = {added.flat};
  const auto first =
      std::stable_partition(held.begin(), held.end(), [&](const Sum& s) { return !root.contains(s.node); });
  for (auto it = first; it != held.end(); ++it) {
    nodes.push_back(it->node);
    parts.push_back(it->flat);
  }
  held.erase(first, held.end());
  if (nodes.size() > 1) {  // in place of a part that is wide already
    const ScalarType raw = real_type(bucket), wide = wide_of(raw);
    const auto is_wide = [&](const at::Tensor& part) { return part.scalar_type() == wide; };
    const auto target = std::find_if(parts.begin(), parts.end(), is_wide);
    added.flat = target != parts.end() ? *target : at::empty({reals(bucket)}, bucket.options.dtype(wide));
    add_up(parts, plan::add_program(root, nodes), raw, added.flat, 0);
  }
  held.push_back({root, added.flat});
}

std::vector<at::Tensor> LeafSums::average(const GroupPtr& group, const std::vector<Bucket>& buckets,
                                          const std::vector<std::vector<int>>& leaves, double divisor,
                                          const std::function<void(size_t)>& launched,
                                          const std::function<void(size_t)>& done) {
  std::vector<std::vector<LeafNode>> roots;
  std::vector<LeafNode> all_roots;
  for (const auto& of_rank : leaves) {
    roots.push_back(backend::guarded([&] { return plan::roots_of(micro_batches_, of_rank); }));
    all_roots.insert(all_roots.end(), roots.back().begin(), roots.back().end());
  }
  const AddProgram program = backend::guarded([&] { return plan::add_program({0, micro_batches_}, all_roots); });
  held_.resize(buckets.size());
  std::vector<std::unique_ptr<RootExchange>> running(buckets.size());
  const auto start = [&](size_t number) {
    std::vector<Sum> own = std::move(held_[number]);
    std::sort(own.begin(), own.end(), [](const Sum& a, const Sum& b) { return a.node < b.node; });
    std::vector<at::Tensor> tensors;
    for (const Sum& sum : own) tensors.push_back(sum.flat);
    launched(number);
    running[number] = std::make_unique<RootExchange>(group, buckets[number], roots, tensors);
  };
  std::vector<size_t> numbers;
  for (size_t number = 0; number < buckets.size(); ++number) {
    if (buckets[number].elements > 0) numbers.push_back(number);
  }
  if (!numbers.empty()) start(numbers.front());
  for (size_t i = 0; i < numbers.size(); ++i) {  // one bucket travels while another one is added up
    if (i + 1 < numbers.size()) start(numbers[i + 1]);
    running[numbers[i]]->fold(program, divisor);
  }
  std::vector<at::Tensor> means(buckets.size());
  for (size_t number = 0; number < buckets.size(); ++number) {
    if (!running[number]) continue;
    means[number] = running[number]->finish();
    done(number);
  }
  drop();
  return means;
}

void LeafSums::drop() {
  leaves_.clear();
  held_.clear();
  used_.clear();
}

std::vector<bool> LeafSums::used(size_t parameters) const {
  std::vector<bool> used = used_;
  used.resize(parameters);
  return used;
}

int64_t LeafSums::bytes() const {
  int64_t bytes = 0;
  for (const auto& of_bucket : held_) {
    for (const Sum& sum : of_bucket) bytes += static_cast<int64_t>(sum.flat.nbytes());
  }
  return bytes;
}

}  // namespace ringdp::reducer
