#include "reducer/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "reducer/layout.h"
#include "reducer/memory.h"

namespace ringdp::reducer {
namespace {

at::Tensor view_of(const at::Tensor& flat, const at::Tensor& parameter, size_t offset, size_t length) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + static_cast<int64_t>(offset));
  }
  return flat.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(length)).view(parameter.sizes());
}

// How many tensors of autograd's own lie in the memory of a gradient that it has just given: the one that it gave the hook,
// and what that is a view of, as the transposed product of a linear layer, unless somebody else has that.
size_t held_by_autograd(const at::Tensor& arrived, const at::Tensor& gradient) {
  if (!arrived.defined() || arrived.is_same(gradient) || !arrived.is_alias_of(gradient)) return 0;
  return arrived.is_view() && arrived._base().use_count() == 1 ? 2 : 1;
}

}  // namespace

Bucket make_bucket(const std::vector<at::Tensor>& all_parameters, std::vector<size_t> indices, bool sparse,
                   const BucketShape& shape) {
  Bucket bucket;
  bucket.sparse = sparse;
  bucket.sharded = shape.shard_block > 0;
  std::vector<int64_t> lengths;
  for (const size_t index : indices) {
    const at::Tensor& parameter = all_parameters[index];
    bucket.parameters.push_back(parameter);
    lengths.push_back(parameter.numel());
  }
  bucket.indices = std::move(indices);
  const at::Tensor& first = bucket.parameters.front();
  bucket.options = at::device(first.device()).dtype(shape.dtype.value_or(first.scalar_type()));
  bucket.in_place = sparse || (bucket.indices.size() == 1 && !shape.gradients_are_views);
  const bool pads = bucket.sharded || !bucket.in_place;  // a gradient that is reduced where it lies has no padding
  const Extent extent = place(lengths, bucket.sharded ? shape.shard_block : 1, pads ? shape.granularity : 1);
  bucket.offsets.assign(extent.offsets.begin(), extent.offsets.end());
  bucket.lengths.assign(lengths.begin(), lengths.end());
  bucket.elements = extent.end;
  bucket.padded = extent.padded;
  return bucket;
}

void allocate(Bucket& bucket, c10d::ProcessGroup& group, bool together) {
  bucket.memory = together ? lasting_memory(group, bucket.padded, bucket.options)
                           : flat_memory(group, bucket.padded, bucket.options);
  for (size_t i = 0; i < bucket.offsets.size(); ++i) {
    const auto end = static_cast<int64_t>(bucket.offsets[i] + bucket.lengths[i]);
    const auto next = i + 1 < bucket.offsets.size() ? static_cast<int64_t>(bucket.offsets[i + 1]) : bucket.padded;
    if (next > end) bucket.memory.narrow(0, end, next - end).zero_();
  }
  bucket.views = views_into(bucket.memory, bucket);
}

bool take_in_place(Bucket& bucket, const at::Tensor& arrived) {
  const at::Tensor& gradient = bucket.parameters[0].grad();
  const at::Tensor& parameter = bucket.parameters[0];
  if (bucket.padded != bucket.elements || gradient.dtype() != bucket.options.dtype()) return false;
  const bool dense = parameter.is_non_overlapping_and_dense();
  const bool as_expected = dense ? gradient.strides() == parameter.strides() : gradient.is_contiguous();
  if (!as_expected || gradient.requires_grad() || gradient.is_conj() || gradient.is_neg()) return false;
  if (gradient.storage().use_count() > 1 + held_by_autograd(arrived, gradient)) return false;
  bucket.memory = gradient.as_strided({bucket.elements}, {1});
  bucket.views = {gradient};
  return true;
}

void renew_views(Bucket& bucket) {
  const auto is_inside = [&](const at::Tensor& view) { return view.is_alias_of(bucket.memory); };
  if (!std::all_of(bucket.views.begin(), bucket.views.end(), is_inside)) bucket.views = views_into(bucket.memory, bucket);
}

void let_go(Bucket& bucket) {
  if (bucket.keeps_memory()) return;
  bucket.memory.reset();
  bucket.views.clear();
}

std::vector<at::Tensor> views_into(const at::Tensor& flat, const Bucket& bucket) {
  std::vector<at::Tensor> views;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    views.push_back(view_of(flat, bucket.parameters[i], bucket.offsets[i], bucket.lengths[i]));
  }
  return views;
}

c10d::GradBucket as_grad_bucket(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count) {
  std::vector<c10::IntArrayRef> sizes;
  if (bucket.sparse) {  // as torch's: no offsets
    return c10d::GradBucket(number, count, flat, {}, {}, {}, bucket.parameters, std::nullopt);
  }
  for (const at::Tensor& parameter : bucket.parameters) sizes.push_back(parameter.sizes());
  return c10d::GradBucket(number, count, flat, bucket.offsets, bucket.lengths, std::move(sizes), bucket.parameters,
                          std::nullopt);
}

}  // namespace ringdp::reducer
