// From tensors to element types and flat memory, and the checks before anything moves.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "base/dtype.h"

namespace ringdp::backend {

// ringdp's dtype of a dense CPU tensor; refuses others by name. `call` is "all_reduce" etc., for the message.
DType checked_dtype(const at::Tensor& tensor, const char* call);

// The one tensor of a c10d tensor list.
at::Tensor single(const std::vector<at::Tensor>& tensors, const char* call);

void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* call);
void check_numel(const at::Tensor& tensor, int64_t wanted, const char* call, const char* which);

// Contiguous memory with the tensor's elements: the tensor itself or a copy.
at::Tensor flat(const at::Tensor& tensor);
// Where to write a tensor's elements: the tensor itself, or a fresh contiguous one that must be copied back.
at::Tensor flat_target(const at::Tensor& tensor);
void copy_back(const at::Tensor& target, at::Tensor tensor);  // no-op when they are the same

// Whether the memory of two contiguous tensors overlaps.
bool overlap(const at::Tensor& a, const at::Tensor& b);

}  // namespace ringdp::backend
