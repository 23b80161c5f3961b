// Sums of squares over fixed blocks of elements: the terms of a norm whose bits, on the CPU, do not depend on the
// number of ranks or the ZeRO stage.
#pragma once
#include <ATen/core/Tensor.h>

namespace ringdp::zero {

// `piece`: contiguous, 1-D, of floats or complex numbers, beginning at a block boundary of its parameter. Returns one
// float64 per block of kShardBlock elements, on the piece's device: on the CPU by kernels/squares.h, elsewhere by
// torch's sum, whose order may depend on the length of the piece. RuntimeError for other shapes.
at::Tensor block_squares(const at::Tensor& piece);

}  // namespace ringdp::zero
