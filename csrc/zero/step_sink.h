// Steps inside the backward pass, as sinks of the reducer: on the CPU the pieces of one bucket are stepped with its
// means as they come, so reduction and update are one sweep; on a device the step is part of the collective that sums
// the bucket.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "kernels/step.h"
#include "reducer/reduction.h"
#include "zero/steps.h"

namespace ringdp::zero {

// Where in the bucket's shard a piece of `steps` lies, in elements.
struct PlacedPiece {
  int64_t offset = 0;
  Steps steps;
  size_t piece = 0;
};

// For buckets of float32. Elements that no piece covers are padding or gradients that are not stepped. RuntimeError
// where pieces overlap.
std::shared_ptr<reducer::ShardSink> step_sink(std::vector<PlacedPiece> pieces);

struct DevicePiece {
  int64_t offset = 0;             // in the bucket's shard, in elements
  std::vector<at::Tensor> state;  // means, squares, and with amsgrad the largest squares
  double number = 0;              // of this step, from 1
  kernels::AdamSettings settings;
};

// `parameters`: of the whole bucket, or of this rank's shard where no other rank keeps it. The bits are those of
// adam_steps() with `fastest`, which relies on fused multiply-add.
std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePiece>& pieces);

}  // namespace ringdp::zero
