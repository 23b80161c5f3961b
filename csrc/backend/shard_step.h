// Adam on this rank's part of a bucket, which a device runs in the collective that sums the bucket's gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/step.h"

namespace ringdp::backend {

// A value. Tensors are contiguous 1-D float32 of one device.
struct ShardStep {
  // Consecutive elements of the part that have settings and state of their own.
  struct Piece {
    int64_t offset = 0;             // in the part, in elements; whole packs of 16 bytes
    std::vector<at::Tensor> state;  // as kernels::StepArrays has it, of as many elements as the piece
    kernels::AdamScalars scalars = {};
  };
  // Either the whole bucket: all ranks receive all of it, stepped; elements in no rank's pieces are overwritten by
  // their gradient, so they must be padding. Or this rank's part: no other rank receives it, and elements in no piece
  // keep their value.
  at::Tensor parameters;
  std::vector<Piece> pieces;  // in order
};

// DistBackendError names a tensor that does not match `world` equal parts of the bucket's gradients.
void check(const ShardStep& step, const at::Tensor& gradients, int world);

}  // namespace ringdp::backend
