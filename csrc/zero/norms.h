// Sums of squares of the fixed blocks of a piece: the terms of a norm that, on the CPU, has the same bits at every N and
// stage.
#pragma once
#include <ATen/core/Tensor.h>

namespace ringdp::zero {

// `piece`: contiguous, 1-D, of floats or complex numbers (pairs of floats then), beginning at a block of its
// parameter. One float64 per block of kShardBlock elements, on the piece's device; on the CPU by kernels/squares.h,
// elsewhere by torch's sum, whose order is torch's own: nothing here proves that it is the same for pieces of any length.
at::Tensor block_squares(const at::Tensor& piece);

}  // namespace ringdp::zero
