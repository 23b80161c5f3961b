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

}  // namespace

Allotment::Allotment(int micro_batches, std::vector<std::vector<int>> leaves_by_rank)
    : leaves(std::move(leaves_by_rank)) {
  std::vector<LeafNode> all;
  for (auto& of_rank : leaves) {
    std::sort(of_rank.begin(), of_rank.end());
    roots.push_back(backend::guarded([&] { return plan::roots_of(micro_batches, of_rank); }));
    all.insert(all.end(), roots.back().begin(), roots.back().end());
  }
  program = backend::guarded([&] { return plan::add_program({0, micro_batches}, all); });
}

ScalarType wide_of(ScalarType type) { return at::isReducedFloatingType(type) ? at::kFloat : type; }

ScalarType real_type(const Bucket& bucket) { return c10::toRealValueType(bucket.options.dtype().toScalarType()); }

int64_t reals(const Bucket& bucket) {
  return bucket.padded * (bucket.options.dtype().toScalarType() == real_type(bucket) ? 1 : 2);
}

ScalarType type_of(LeafNode root, const Bucket& bucket) {
  return root.leaves() == 1 ? real_type(bucket) : wide_of(real_type(bucket));
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
                           const std::vector<at::Tensor>& own)
    : group_(group), bucket_(bucket), allotment_(std::move(allotment)), shard_(reals(bucket) / group->getSize()) {
  std::vector<int64_t> to_lengths;
  for (const auto& of_rank : allotment_->roots) {
    int64_t bytes = 0;
    for (const LeafNode root : of_rank) bytes += bytes_of(root);
    to_lengths.push_back(bytes);
  }
  sent_ = by_owner(own);
  arrived_ =
      at::empty({std::accumulate(to_lengths.begin(), to_lengths.end(), int64_t{0})}, bucket.options.dtype(at::kByte));
  std::vector<int64_t> from_lengths(group->getSize(), sent_.numel() / group->getSize());
  shuffle_ = backend::exchange_parts(*group_, arrived_, sent_, std::move(to_lengths), std::move(from_lengths));
}

void RootExchange::fold(double divisor) {
  shuffle_->wait();
  sent_.reset();
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const auto& of_rank : allotment_->roots) {
    for (const LeafNode root : of_rank) {
      parts.push_back(arrived_.narrow(0, at, bytes_of(root)).view(type_of(root, bucket_)));
      at += bytes_of(root);
    }
  }
  mean_ = at::empty({shard_}, bucket_.options.dtype(real_type(bucket_)));
  add_up(parts, allotment_->program, real_type(bucket_), mean_, divisor);
  arrived_.reset();
  if (bucket_.sharded) return;
  whole_ = at::empty({reals(bucket_)}, mean_.options());
  at::Tensor to = whole_.view(at::kByte), from = mean_.view(at::kByte);
  gather_ = backend::gather_parts(*group_, to, from);
}

at::Tensor RootExchange::finish() {
  if (gather_) gather_->wait();
  const at::Tensor result = gather_ ? whole_ : mean_;
  return reals(bucket_) == bucket_.padded ? result : at::view_as_complex(result.view({-1, 2}));
}

int64_t RootExchange::bytes_of(LeafNode root) const {
  return shard_ * static_cast<int64_t>(c10::elementSize(type_of(root, bucket_)));
}

// All roots' bytes for rank 0, then for rank 1, ...
at::Tensor RootExchange::by_owner(const std::vector<at::Tensor>& own) const {
  if (own.size() == 1) return own.front().view(at::kByte);
  std::vector<at::Tensor> pieces;
  for (int rank = 0; rank < group_->getSize(); ++rank) {
    for (const at::Tensor& root : own) pieces.push_back(root.narrow(0, rank * shard_, shard_).view(at::kByte));
  }
  return pieces.empty() ? at::empty({0}, bucket_.options.dtype(at::kByte)) : at::cat(pieces);
}

}  // namespace ringdp::reducer
