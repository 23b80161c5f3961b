// One gradient between a parameter's .grad and its view in a bucket.
//
// A rank that has no gradient contributes -0.0, the identity of IEEE addition: every sum, also one of signed zeros, has
// the bits it has without that rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace ringdp::reducer {

// What collectives work on: complex numbers as pairs of real ones.
at::Tensor as_reals(const at::Tensor& flat);

void fill_absent(const at::Tensor& place);

// What a rank without a gradient contributes where the others have sparse ones.
at::Tensor absent_sparse(const at::Tensor& parameter);

// RuntimeError under distributed autograd (RPC), which keeps gradients to itself: there would be nothing to average.
void refuse_distributed_autograd();

// RuntimeError names the parameter when its gradient does not fit its bucket. `widens`: the bucket may be of a wider
// type.
void check_fits(const at::Tensor& gradient, const at::TensorOptions& bucket, const std::string& name, bool widens);

// After the reduction: .grad gets `result`, by aliasing `view` (which then holds it) or by a copy into memory of its own,
// laid out as autograd would. RuntimeError when a .grad that should be the view is something else by now.
void give_view(const at::Tensor& parameter, const at::Tensor& view, const at::Tensor& result, const std::string& name);
void give_copy(const at::Tensor& parameter, const at::Tensor& result);

}  // namespace ringdp::reducer
