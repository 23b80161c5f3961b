// Sums of squares of the fixed blocks of a piece: the terms of a norm that, on the CPU, has the same bits for every
// number of ranks and at every stage.
#pragma once
#include <ATen/core/Tensor.h>

namespace ringdp::zero {

// `piece`: contiguous, 1-D, of floats or complex numbers (pairs of floats then), beginning at a block of its
// parameter. One float64 per block of kShardBlock elements, on the piece's device; on the CPU by kernels/squares.h,
// elsewhere by torch's sum, whose order may depend on the length of the piece.
at::Tensor block_squares(const at::Tensor& piece);

}  // namespace ringdp::zero
