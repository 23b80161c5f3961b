// From c10d's reduce operations to ringdp's.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/dtype.h"

namespace ringdp::backend {

// Refuses an operation that has no meaning on `dtype`, by name. `call` is "all_reduce" etc., for the message.
ReduceOp checked_op(const c10d::ReduceOp& op, DType dtype, const char* call);

// DistBackendError unless it is finite and not 0.
void check_divisor(double divisor, const char* call);

// PREMUL_SUM: a copy times this rank's factor, rounded to the tensor's dtype; else the tensor itself.
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* call);

}  // namespace ringdp::backend
