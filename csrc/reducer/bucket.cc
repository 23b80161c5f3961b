#include "reducer/bucket.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/distributed/autograd/context/context.h>

#include <algorithm>

#include "reducer/copies.h"
#include "reducer/layout.h"

namespace ringdp::reducer {
namespace {

at::Tensor view_of(const at::Tensor& flat, const at::Tensor& parameter, size_t offset, size_t length) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(),
                           flat.storage_offset() + static_cast<int64_t>(offset));
  }
  return flat.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(length)).view(parameter.sizes());
}

// How many of autograd's own tensors share the memory of a gradient that it has just produced: the one given to the
// hook, and, if that is a view (e.g. the transposed product of a linear layer), its base unless something else holds
// it.
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
  bucket.of_leaves = shape.of_leaves;
  std::vector<int64_t> lengths;
  for (const size_t index : indices) {
    const at::Tensor& parameter = all_parameters[index];
    bucket.parameters.push_back(parameter);
    lengths.push_back(parameter.numel());
  }
  bucket.indices = std::move(indices);
  const at::Tensor& first = bucket.parameters.front();
  bucket.options = at::device(first.device()).dtype(shape.dtype.value_or(first.scalar_type()));
  bucket.in_place = sparse || (bucket.indices.size() == 1 && shape.in_place && !shape.of_leaves);
  const bool pads = bucket.sharded || !bucket.in_place;  // a gradient that is reduced in place has no padding
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
  clear_padding(bucket.memory, bucket);
  bucket.views = views_into(bucket.memory, bucket);
}

void clear_padding(const at::Tensor& flat, const Bucket& bucket) {
  for (size_t i = 0; i < bucket.offsets.size(); ++i) {
    const auto end = static_cast<int64_t>(bucket.offsets[i] + bucket.lengths[i]);
    const auto next = i + 1 < bucket.offsets.size() ? static_cast<int64_t>(bucket.offsets[i + 1]) : bucket.padded;
    if (next > end) flat.narrow(0, end, next - end).zero_();
  }
}

at::Tensor memory_of_gradient(const Bucket& bucket, const at::Tensor& arrived) {
  const at::Tensor& gradient = bucket.parameters[0].grad();
  const at::Tensor& parameter = bucket.parameters[0];
  if (!bucket.is_one_gradient() || gradient.dtype() != bucket.options.dtype()) return {};
  const bool dense = parameter.is_non_overlapping_and_dense();
  const bool as_expected = dense ? gradient.strides() == parameter.strides() : gradient.is_contiguous();
  if (!as_expected || gradient.requires_grad() || gradient.is_conj() || gradient.is_neg()) return {};
  if (gradient.storage().use_count() > 1 + held_by_autograd(arrived, gradient)) return {};
  if (!gradient.storage().resizable()) return {};  // memory of another library, which may have other users
  return gradient.as_strided({bucket.elements}, {1});
}

bool take_in_place(Bucket& bucket, const at::Tensor& arrived) {
  const at::Tensor memory = memory_of_gradient(bucket, arrived);
  if (!memory.defined()) return false;
  bucket.memory = memory;
  bucket.views = {bucket.parameters[0].grad()};
  return true;
}

void renew_views(Bucket& bucket) {
  const auto is_inside = [&](const at::Tensor& view) { return view.is_alias_of(bucket.memory); };
  if (!std::all_of(bucket.views.begin(), bucket.views.end(), is_inside)) {
    bucket.views = views_into(bucket.memory, bucket);
  }
}

void release_memory(Bucket& bucket) {
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

at::Tensor as_reals(const at::Tensor& flat) { return flat.is_complex() ? at::view_as_real(flat).flatten() : flat; }

void fill_absent(const at::Tensor& place) { (place.is_complex() ? at::view_as_real(place) : place).fill_(-0.0); }

at::Tensor absent_sparse(const at::Tensor& parameter) {
  const int64_t dims = parameter.dim();  // embeddings: one sparse dimension
  return at::_sparse_coo_tensor_with_dims(1, dims - 1, parameter.sizes(), parameter.options().layout(at::kSparse))
      ._coalesced_(true);
}

void refuse_distributed_autograd() {
  using torch::distributed::autograd::ThreadLocalDistAutogradContext;
  TORCH_CHECK(!ThreadLocalDistAutogradContext::getContextPtr(),
              "DistributedDataParallel: gradients of a distributed autograd context (RPC) are not averaged by ringdp's "
              "class: use torch.nn.parallel.DistributedDataParallel there");
}

void check_fits(const at::Tensor& gradient, const at::TensorOptions& bucket, const std::string& name, bool widens) {
  TORCH_CHECK(gradient.layout() == at::kStrided, "DistributedDataParallel: the gradient of ", name,
              " is sparse, and its layer does not say so: use nn.Embedding(sparse=True) or a dense gradient");
  const auto dtype = c10::typeMetaToScalarType(bucket.dtype());
  const auto own = gradient.scalar_type();
  const bool right_type = widens ? c10::promoteTypes(own, dtype) == dtype : own == dtype;
  TORCH_CHECK(right_type && gradient.device() == bucket.device(), "DistributedDataParallel: the gradient of ", name,
              " is ", gradient.scalar_type(), " on ", gradient.device(), ", its bucket was made for ", dtype, " on ",
              bucket.device(), ": convert the model before it is wrapped");
}

void give_view(const at::Tensor& parameter, const at::Tensor& view, const at::Tensor& result, const std::string& name) {
  if (!result.is_alias_of(view)) copy_tensor(view, result);
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = view;
  TORCH_CHECK(gradient.is_alias_of(view),
              "Detected at least one parameter gradient is not the expected DDP bucket view "
              "with gradient_as_bucket_view=True: the .grad of ",
              name,
              " was replaced between its backward and the end of the backward pass (two reducers on one parameter?)");
}

void give_copy(const at::Tensor& parameter, const at::Tensor& result) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && !gradient._is_zerotensor()) {  // those have no memory
    copy_tensor(gradient, result);
  } else {
    gradient = torch::autograd::utils::clone_obey_contract(result, parameter);
  }
}

c10::intrusive_ptr<c10d::Backend> backend_of(c10d::ProcessGroup& group, const at::Device& device) {
  for (const at::Device& served : group.getDeviceTypes()) {
    if (served.type() == device.type()) return group.getBackend(device.type());
  }
  return nullptr;
}

backend::Capabilities* capabilities_of(c10d::ProcessGroup& group, const at::Device& device) {
  return dynamic_cast<backend::Capabilities*>(backend_of(group, device).get());
}

bool offers_shared_memory(c10d::ProcessGroup& group, const at::Device& device) {
  // Registered memory of other devices is managed by their backend.
  if (!device.is_cpu() || group.getSize() == 1) return false;
  const auto backend = backend_of(group, device);
  return backend && backend->supportsTensorAlloc(device.index());
}

std::unique_ptr<backend::SizedScope> share_gradients_of(c10d::ProcessGroup& group, const at::Device& device,
                                                        std::vector<size_t> sizes) {
  auto* const capabilities = capabilities_of(group, device);
  return capabilities && !sizes.empty() ? capabilities->share_tensors_of(std::move(sizes)) : nullptr;
}

at::Tensor flat_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options) {
  if (!offers_shared_memory(group, options.device())) return at::empty({elements}, options);
  return backend_of(group, options.device())->allocateTensor(elements, options);
}

at::Tensor step_memory(c10d::ProcessGroup* group, int64_t elements, const at::TensorOptions& options) {
  if (group == nullptr || elements == 0) return at::empty({elements}, options);
  try {
    return flat_memory(*group, elements, options);
  } catch (const c10::Error&) {
    return at::empty({elements}, options);
  }
}

at::Tensor lasting_memory(c10d::ProcessGroup& group, int64_t elements, const at::TensorOptions& options) {
  auto* const capabilities = options.device().is_cpu() ? nullptr : capabilities_of(group, options.device());
  const at::Tensor shared = capabilities && elements > 0 ? capabilities->share_memory(elements, options) : at::Tensor();
  return shared.defined() ? shared : flat_memory(group, elements, options);
}

void reclaim_memory(c10d::ProcessGroup& group, const at::Device& device) {
  if (auto* const capabilities = capabilities_of(group, device)) capabilities->reclaim_memory(device);
}

bool is_shared(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  const auto* const capabilities = capabilities_of(group, tensor.device());
  return capabilities != nullptr && capabilities->shares(tensor);
}

}  // namespace ringdp::reducer
