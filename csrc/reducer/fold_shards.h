// The sum of everybody's shards in rank order, divided once: on the CPU by ringdp's own kernel, the one its backend runs
// on, elsewhere by torch's element-wise operations in the same order and precision.
#pragma once
#include <ATen/core/Tensor.h>

namespace ringdp::reducer {

// `shards`: [ranks, elements], contiguous; overwritten. The result has the dtype of the shards; 16-bit floats are folded
// and divided in float32 and rounded once.
at::Tensor fold_shards(const at::Tensor& shards, double divisor);

}  // namespace ringdp::reducer
