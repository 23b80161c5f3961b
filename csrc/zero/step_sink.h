// Optimizer steps inside the backward pass, as sinks of the reducer. On the CPU the pieces of a bucket are stepped as
// its mean arrives, so reduction and update are one pass over memory; on a device the step is part of the collective
// that sums the bucket.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "kernels/step.h"
#include "reducer/reduction.h"
#include "zero/steps.h"

namespace ringdp::zero {

// A piece of `steps`, and its offset in the bucket's shard in elements.
struct PlacedPiece {
  int64_t offset = 0;
  Steps steps;
  size_t piece = 0;
};

// For a bucket of float32. Elements outside of all pieces are not stepped: padding, or parameters that the optimizer
// does not have. RuntimeError if pieces overlap.
std::shared_ptr<reducer::ShardSink> step_sink(std::vector<PlacedPiece> pieces);

struct DevicePiece {
  int64_t offset = 0;             // in the bucket's shard, in elements
  std::vector<at::Tensor> state;  // exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq
  double step_number = 0;         // 1 in the first step
  kernels::AdamSettings settings;
};

// `parameters`: the whole bucket, which every rank then receives; or this rank's shard, if ranks keep only their own.
// The bits are those of adam_steps() with `fastest`, which relies on fused multiply-add.
std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePiece>& pieces);

}  // namespace ringdp::zero
