#include "reducer/root_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
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

void add_on_cpu(const std::vector<at::Tensor>& parts, const AddProgram& program, ScalarType raw, const at::Tensor& to,
                double divisor) {
  std::vector<kernels::TreeSource> sources;
  for (const at::Tensor& part : parts) sources.push_back({part.const_data_ptr(), part.scalar_type() != raw});
  void* const target = to.data_ptr();
  kernels::TreeArgs args;
  args.srcs = sources;
  args.program = program;
  args.dsts = {&target, 1};
  args.count = to.numel();
  args.dtype = backend::checked_dtype(at::empty({0}, to.options().dtype(raw)), "mean");
  args.wide_dst = to.scalar_type() != raw;
  args.divisor = divisor;
  backend::guarded([&] { kernels::fold_tree(args); });
}

}  // namespace

void Allotment::set_leaves(int micro_batches, std::vector<std::vector<int>> leaves_by_rank) {
  leaves = std::move(leaves_by_rank);
  auto found = std::make_shared<plan::Roots>();
  found->micro_batches = micro_batches;
  for (auto& of_rank : leaves) {
    std::sort(of_rank.begin(), of_rank.end());
    found->by_rank.push_back(backend::guarded([&] { return plan::roots_of(micro_batches, of_rank); }));
  }
  roots = std::move(found);
}

Allotment Allotment::of_round(int micro_batches, std::vector<std::vector<int>> leaves_by_rank) {
  Allotment round;
  round.set_leaves(micro_batches, std::move(leaves_by_rank));
  return round;
}

Allotment::Allotment(int micro_batches, std::vector<std::vector<int>> leaves_by_rank) {
  set_leaves(micro_batches, std::move(leaves_by_rank));
  program = backend::guarded([&] { return roots->program(); });
  const auto has_one = [](const std::vector<LeafNode>& of_rank) { return of_rank.size() == 1; };
  is_tree_of_ranks = std::all_of(roots->by_rank.begin(), roots->by_rank.end(), has_one) &&
                     program == plan::program_of_ranks(static_cast<int>(roots->by_rank.size()));
}

std::optional<ScalarType> Allotment::reduced_as(const Bucket& bucket) const {
  if (!is_tree_of_ranks && !bucket.options.device().is_cpu()) return std::nullopt;
  std::optional<ScalarType> type;
  for (const auto& of_rank : roots->by_rank) {
    for (const LeafNode root : of_rank) {
      if (type.value_or(type_of(root, bucket)) != type_of(root, bucket)) return std::nullopt;
      type = type_of(root, bucket);
    }
  }
  return type;
}

ScalarType wide_of(ScalarType type) { return at::isReducedFloatingType(type) ? at::kFloat : type; }

ScalarType real_type(const Bucket& bucket) { return c10::toRealValueType(bucket.options.dtype().toScalarType()); }

int64_t reals(const Bucket& bucket) {
  return bucket.padded * (bucket.options.dtype().toScalarType() == real_type(bucket) ? 1 : 2);
}

ScalarType type_of(LeafNode root, const Bucket& bucket) {
  return root.leaves() == 1 ? real_type(bucket) : wide_of(real_type(bucket));
}

at::Tensor elements_of(const at::Tensor& reals, const Bucket& bucket) {
  const bool is_complex = bucket.options.dtype().toScalarType() != real_type(bucket);
  return is_complex ? at::view_as_complex(reals.view({-1, 2})) : reals;
}

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

RootExchange::RootExchange(const GroupPtr& group, const Bucket& bucket, AllotmentPtr allotment,
                           const std::vector<at::Tensor>& own, std::optional<Ahead> ahead)
    : group_(group),
      bucket_(bucket),
      allotment_(std::move(allotment)),
      shares_memory_(ahead.has_value()),
      shard_(reals(bucket) / group->getSize()) {
  const std::optional<ScalarType> type = ahead && ahead->along_tree ? allotment_->reduced_as(bucket) : std::nullopt;
  auto* const capabilities = type ? capabilities_of(*group_, bucket.options.device()) : nullptr;
  // Roots are only read, as they are sent again if some rank has not sent what is expected of it.
  if (capabilities != nullptr && ahead->divisor != 0 && *type == real_type(bucket)) {
    at::Tensor& to = bucket.sharded ? mean_ : whole_;
    to = memory(bucket.sharded ? shard_ : reals(bucket), *type);
    last_ = reduce(*capabilities, own, to, ahead->divisor, bucket.sharded);
  } else if (capabilities != nullptr && *type == wide_of(real_type(bucket))) {
    // Wide sums, which fold() divides, as the divisor may not be known yet, and rounds.
    is_reduced_ = true;
    arrived_ = memory(shard_, *type);
    shuffle_ = reduce(*capabilities, own, arrived_, /*divisor=*/1, /*scatters=*/true);
  } else {
    exchange(own);
  }
}

at::Tensor RootExchange::memory(int64_t elements, ScalarType type) const {
  return step_memory(shares_memory_ ? group_.get() : nullptr, elements, bucket_.options.dtype(type));
}

RootExchange::Work RootExchange::reduce(backend::Capabilities& capabilities, const std::vector<at::Tensor>& own,
                                        const at::Tensor& to, double divisor, bool scatters) const {
  if (!allotment_->is_tree_of_ranks) {
    return capabilities.reduce_roots(to, own, allotment_->roots, divisor, scatters, /*asynchronous=*/true);
  }
  if (scatters) return capabilities.reduce_scatter_div(to, own[0], divisor, /*asynchronous=*/true, {}, {});
  return capabilities.reduce_div(to, own[0], divisor, /*asynchronous=*/true, {});
}

void RootExchange::exchange(const std::vector<at::Tensor>& own) {
  std::vector<int64_t> to_lengths;
  for (const auto& of_rank : allotment_->roots->by_rank) {
    int64_t bytes = 0;
    for (const LeafNode root : of_rank) bytes += bytes_of(root);
    to_lengths.push_back(bytes);
  }
  sent_ = by_owner(own);
  arrived_ = memory(std::accumulate(to_lengths.begin(), to_lengths.end(), int64_t{0}), at::kByte);
  std::vector<int64_t> from_lengths(group_->getSize(), sent_.numel() / group_->getSize());
  shuffle_ = backend::exchange_parts(*group_, arrived_, sent_, std::move(to_lengths), std::move(from_lengths));
}

std::vector<LeafSum> RootExchange::arrived() {
  shuffle_->wait();
  sent_.reset();
  std::vector<LeafSum> sums;
  int64_t at = 0;
  for (const auto& of_rank : allotment_->roots->by_rank) {
    for (const LeafNode root : of_rank) {
      sums.push_back({root, arrived_.narrow(0, at, bytes_of(root)).view(type_of(root, bucket_))});
      at += bytes_of(root);
    }
  }
  return sums;
}

void RootExchange::fold(double divisor) {
  if (last_) return;  // the reduction does it
  const bool in_place = is_reduced_ && arrived_.scalar_type() == real_type(bucket_);
  mean_ = in_place ? arrived_ : memory(shard_, real_type(bucket_));
  if (is_reduced_) {
    shuffle_->wait();
    sent_.reset();
    add_up({arrived_}, {0}, real_type(bucket_), mean_, divisor);
  } else {
    std::vector<at::Tensor> parts;
    for (LeafSum& sum : arrived()) parts.push_back(std::move(sum.flat));
    add_up(parts, allotment_->program, real_type(bucket_), mean_, divisor);
  }
  arrived_.reset();
  if (bucket_.sharded) return;
  whole_ = memory(reals(bucket_), real_type(bucket_));
  at::Tensor to = whole_.view(at::kByte), from = mean_.view(at::kByte);
  last_ = backend::gather_parts(*group_, to, from);
}

at::Tensor RootExchange::finish() {
  if (last_) last_->wait();
  return elements_of(bucket_.sharded ? mean_ : whole_, bucket_);
}

int64_t RootExchange::bytes_of(LeafNode root) const {
  return shard_ * static_cast<int64_t>(c10::elementSize(type_of(root, bucket_)));
}

// All roots' bytes for rank 0, then for rank 1, ...
at::Tensor RootExchange::by_owner(const std::vector<at::Tensor>& own) const {
  if (own.size() == 1) return own.front().view(at::kByte);
  std::vector<at::Tensor> pieces;
  int64_t bytes = 0;
  for (int rank = 0; rank < group_->getSize(); ++rank) {
    for (const at::Tensor& root : own) {
      pieces.push_back(root.narrow(0, rank * shard_, shard_).view(at::kByte));
      bytes += pieces.back().numel();
    }
  }
  at::Tensor joined = memory(bytes, at::kByte);
  return pieces.empty() ? joined : at::cat_out(joined, pieces);
}

}  // namespace ringdp::reducer
