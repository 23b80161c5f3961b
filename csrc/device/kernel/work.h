// What one launch runs on one rank: its steps, and where everybody's memory is. Plain data: the argument of a kernel.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "device/plan/step.h"
#include "kernels/step.h"

namespace ringdp::gpu {

constexpr int kMaxBlocks = 64;
// A flag holds epoch * this + value and only grows. 64 bits, because a kind of flag can rest for any number of
// launches, after which a 32-bit one would look as if it lay ahead.
constexpr uint64_t kValuesPerEpoch = 1024;

// One word per (slot, block, writer), each in a line of its own, in the memory of the rank that waits.
struct alignas(128) Flag {
  uint64_t value;
};
struct Flags {
  Flag of[plan::kMaxDeviceSlots][kMaxBlocks][plan::kMaxDeviceRanks];
};

// In device memory, of this rank, zero at first. Every launch is an epoch, counted from 1; its last block counts it
// here, so that a graph can be replayed.
struct Epoch {
  uint64_t launches;         // that are over
  uint32_t finished_blocks;  // of the launch under way
};

// The first wait that ended at its deadline; host memory that the device maps, so that it can be read at any time.
struct Expired {
  uint32_t set;  // 0: none; 1: the rest is being written; 2: it is written
  int32_t rank, block, step, peer;
  uint32_t slot;                 // of the flag; kPushedData: what `peer` pushes
  uint64_t epoch, wanted, seen;  // wanted and seen: what the flag holds
  uint64_t launch;               // stream_epoch of its Work
};
constexpr uint32_t kPushedData = plan::kMaxDeviceSlots;

struct Work {
  int32_t rank, world, blocks, steps;
  int32_t captured;  // not 0: in a graph, which may be replayed when the group is over
  Epoch* epoch;
  uint64_t stream_epoch;  // the launch's number, from 1, counted by the host; STREAM: its epoch: streams cannot count
  uint64_t deadline_ns;   // per wait
  double divisor;         // of sums that are finished; 0: none
  char* input[plan::kMaxDeviceRanks];
  char* output[plan::kMaxDeviceRanks];
  char* stage[plan::kMaxDeviceRanks];
  char* pushed[plan::kMaxDeviceRanks];  // zero at first
  int64_t pushed_bytes;                 // of one writer's part for one parity: twice what it brings
  Flags* flags[plan::kMaxDeviceRanks];  // zero at first
  uint32_t* abort;                      // host-mapped: not 0 ends every wait
  // Everybody's, by rank, of work on callers' own memory and of what else must end for all at once; else null.
  uint32_t* aborts[plan::kMaxDeviceRanks];
  Expired* expired;
  plan::DeviceStep step[plan::kMaxDeviceSteps];
};

// STREAM: what the flag of this post or await holds.
inline uint64_t stream_value(const Work& work, const plan::DeviceStep& step) {
  return work.stream_epoch * kValuesPerEpoch + step.value;
}

// What one launch of the fused step works on, on one rank: gradients are summed over all ranks, Adam or AdamW steps
// this rank's shard, and the new parameters go to the ranks that want them. Plain data: the argument of a kernel.
//
// Everything is float32 and 16-byte aligned. gradients[r] and parameters[r]: where this rank's shard lies in rank r's
// memory, whole packs; they may be the same memory where r is another rank. State is `count` elements long. Nothing
// waits: by a barrier before it everybody's gradients are there and nobody reads parameters; by one after it parameters
// may be read and gradients be overwritten.

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

// What one launch encodes or decodes, on one rank: elements of a floating type, and their blocks in a wire type, in the
// format of kernels/codec.h. Plain data: the argument of a kernel.

struct CodecWork {
  const char* from;  // 16-byte aligned, both; they do not overlap
  char* to;
  int64_t count;  // elements
  int64_t held;   // encoding: elements that there are; the rest of `count` counts as zeros
  DType element;  // float32, float64, float16 or bfloat16
  WireType wire;  // not fp32, which encodes nothing
  bool encodes;   // else it decodes
};

}  // namespace ringdp::gpu
