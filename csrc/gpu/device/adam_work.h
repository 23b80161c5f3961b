// What one launch of the fused step works on, on one rank: gradients are summed over all ranks, Adam or AdamW steps
// this rank's shard, and the new parameters go to the ranks that want them. Plain data: the argument of a kernel.
//
// Everything is float32 and 16-byte aligned. gradients[r] and parameters[r]: where this rank's shard lies in rank r's
// memory, whole packs; they may be the same memory where r is another rank. State is `count` elements long. Nothing
// waits: by a barrier before it everybody's gradients are there and nobody reads parameters; by one after it parameters
// may be read and gradients be overwritten.
#pragma once
#include <cstdint>

#include "kernels/step_kernel.h"
#include "plan/device_step.h"

namespace ringdp::gpu {

struct AdamWork {
  int32_t rank, world;
  int64_t count;
  double divisor;  // of the sum; 0: none
  float* gradients[plan::kMaxDeviceRanks];
  float* parameters[plan::kMaxDeviceRanks];  // the own one is read; another may be null: that rank gets none
  float* state[3];                           // as StepArrays; the last with amsgrad only
  kernels::AdamScalars scalars;
  uint32_t* abort;  // host-mapped: not 0, and nothing is stepped
};

}  // namespace ringdp::gpu
