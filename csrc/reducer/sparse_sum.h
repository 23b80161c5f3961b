// The mean of sparse gradients: the backend's all_reduce of a COO tensor, then one division of the values.
//
// ringdp's backend sums them in rank order. 16-bit values are rounded after the sum and again after the division.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

#include "reducer/reduction.h"

namespace ringdp::reducer {

std::unique_ptr<Reduction> start_sparse_mean(c10d::ProcessGroup& group, const at::Tensor& gradient, double divisor);

}  // namespace ringdp::reducer
