// Copies of gradients into and out of buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace ringdp::reducer {

// Copies a tensor to one of the same shape; dtypes and layouts may differ. Large ones on the CPU go past the caches: a
// bucket is read only once it is full, and .grad only by the optimizer, while the backward pass that goes on needs the
// caches for itself.
void copy_tensor(const at::Tensor& to, const at::Tensor& from);

// Copies each of `from` to the tensor of `to` at the same position.
void copy_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

}  // namespace ringdp::reducer
