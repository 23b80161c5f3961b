// The step of a bucket on a device, as the reducer hands it to the collective that sums the bucket's gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "kernels/step.h"
#include "reducer/shard_sink.h"

namespace ringdp::zero {

struct DevicePiece {
  int64_t offset = 0;             // in the bucket's shard, in elements
  std::vector<at::Tensor> state;  // means, squares, and with amsgrad the largest squares
  double number = 0;              // of this step, from 1
  kernels::AdamSettings settings;
};

// `parameters`: of the whole bucket, or of this rank's shard where nobody else keeps it. The bits are those of
// adam_steps() with `fastest`, which counts on fused multiply-add.
std::shared_ptr<reducer::ShardSink> device_sink(at::Tensor parameters, const std::vector<DevicePiece>& pieces);

}  // namespace ringdp::zero
