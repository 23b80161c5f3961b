#include "reducer/gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/distributed/autograd/context/context.h>

namespace ringdp::reducer {

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
  TORCH_CHECK(right_type && gradient.device() == bucket.device(),
              "DistributedDataParallel: the gradient of ", name, " is ", gradient.scalar_type(), " on ",
              gradient.device(), ", its bucket was made for ", dtype, " on ", bucket.device(),
              ": convert the model before it is wrapped");
}

void give_view(const at::Tensor& parameter, const at::Tensor& view, const at::Tensor& result, const std::string& name) {
  if (!result.is_alias_of(view)) view.copy_(result);
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = view;
  TORCH_CHECK(gradient.is_alias_of(view), "Detected at least one parameter gradient is not the expected DDP bucket view "
              "with gradient_as_bucket_view=True: the .grad of ", name,
              " was replaced between its backward and the end of the backward pass (two reducers on one parameter?)");
}

void give_copy(const at::Tensor& parameter, const at::Tensor& result) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) {
    gradient.copy_(result);
  } else {
    gradient = torch::autograd::utils::clone_obey_contract(result, parameter);
  }
}

}  // namespace ringdp::reducer
