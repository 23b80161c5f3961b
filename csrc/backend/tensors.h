// From torch's tensors and reduce operations to ringdp's element types, operations and flat memory, with the checks
// that come before any data is sent.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "base/dtype.h"
#include "comm/fingerprint.h"

namespace ringdp::backend {

// ringdp's dtype of a dense tensor of the CPU or of a served device; refuses others by name. `call` is "all_reduce"
// etc., for the message.
DType checked_dtype(const at::Tensor& tensor, const char* call);

// The one tensor of a c10d tensor list.
at::Tensor single(const std::vector<at::Tensor>& tensors, const char* call);

void check_same_dtype(const at::Tensor& a, const at::Tensor& b, const char* call);
void check_numel(const at::Tensor& tensor, int64_t wanted, const char* call, const char* which);

// Refuses a tensor whose elements share memory, as those of an expanded one do.
void check_writable(const at::Tensor& tensor, const char* call);

// The one dtype of a list of such tensors.
DType checked_list(const std::vector<at::Tensor>& tensors, const char* call);
// The elements of all tensors end to end, in memory of its own, and back from there.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
void copy_apart(const at::Tensor& joined, const std::vector<at::Tensor>& tensors);

// For coalesced forms: as many outputs as inputs.
void check_pairs(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* call);

// Cuts a contiguous tensor into equal parts, as flat views.
std::vector<at::Tensor> equal_parts(const at::Tensor& tensor, int parts);

// Describes parts of these sizes, one per rank: `count` when all are equal, else `counts`.
void set_parts(comm::OpDesc& desc, const std::vector<at::Tensor>& parts);

// Contiguous memory with the tensor's elements: the tensor itself or a copy.
at::Tensor flat(const at::Tensor& tensor);
// Where to write a tensor's elements: the tensor itself, or a fresh contiguous one that must be copied back.
at::Tensor flat_target(const at::Tensor& tensor, const char* call);
void copy_back(const at::Tensor& target, at::Tensor tensor);  // no-op when they are the same

// `count` elements from `begin` on of a contiguous tensor, as a view.
at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t count);

// Whether the memory of two contiguous tensors overlaps.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// ringdp's reduce operation; refuses one that has no meaning on `dtype`, by name.
ReduceOp checked_op(const c10d::ReduceOp& op, DType dtype, const char* call);

// DistBackendError unless it is finite and not 0.
void check_divisor(double divisor, const char* call);

// PREMUL_SUM: a copy times this rank's factor, rounded to the tensor's dtype; else the tensor itself.
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* call);

}  // namespace ringdp::backend
