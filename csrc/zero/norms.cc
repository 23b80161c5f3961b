#include "zero/norms.h"

#include <ATen/ATen.h>

#include "backend/errors.h"
#include "backend/tensors.h"
#include "zero/shard_layout.h"

namespace ringdp::zero {
namespace {

at::Tensor on_device(const at::Tensor& values) {
  const int64_t blocks = kernels::square_blocks(values.numel());
  const at::Tensor padded = at::constant_pad_nd(values.to(at::kDouble), {0, blocks * kShardBlock - values.numel()});
  return padded.view({blocks, kShardBlock}).square().sum(1);
}

at::Tensor of_reals(const at::Tensor& values) {
  if (!values.device().is_cpu()) return on_device(values);
  at::Tensor sums = at::empty({kernels::square_blocks(values.numel())}, at::kDouble);
  backend::guarded([&] {
    const DType dtype = backend::checked_dtype(values, "clip_grad_norm_");
    kernels::block_squares(dtype, values.const_data_ptr(), values.numel(), sums.mutable_data_ptr<double>());
  });
  return sums;
}

}  // namespace

at::Tensor block_squares(const at::Tensor& piece) {
  TORCH_CHECK(piece.dim() == 1 && piece.is_contiguous(),
              "clip_grad_norm_: a piece must be a contiguous 1-D tensor, but has shape ", piece.sizes());
  if (!piece.is_complex()) return of_reals(piece);
  // Two blocks of real numbers are one of complex ones.
  const at::Tensor halves = of_reals(at::view_as_real(piece).flatten());
  return at::constant_pad_nd(halves, {0, halves.numel() % 2}).view({-1, 2}).sum(1);
}

}  // namespace ringdp::zero
