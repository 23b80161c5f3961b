// What one launch runs on one rank: its steps, and the addresses of all ranks' memory. Plain data, the arguments of
// kernels.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "base/dtype.h"
#include "device/plan/step.h"
#include "kernels/step.h"

namespace ringdp::gpu {

constexpr int kMaxBlocks = 64;
constexpr int kThreads = 512;  // of a block, in every kernel
// So many that every thread has one pack.
inline int blocks_of(int64_t packs, int most) {
  return static_cast<int>(std::clamp<int64_t>(ceil_div(packs, kThreads), 1, most));
}

// A flag holds epoch * this + value and only increases. It has 64 bits because a slot may be unused for any number of
// launches, after which a 32-bit counter would have wrapped around.
constexpr uint64_t kValuesPerEpoch = 1024;

// One word per (slot, block, writer), each in its own cache line, in the memory of the rank that waits.
struct alignas(128) Flag {
  uint64_t value;
};
struct Flags {
  Flag of[plan::kMaxDeviceSlots][kMaxBlocks][plan::kMaxDeviceRanks];
};

// The number of launches so far, in this rank's device memory, zero at first. The last block of each launch increments
// it, so that a graph can be replayed.
struct Epoch {
  uint64_t launches;         // that have finished
  uint32_t finished_blocks;  // of the current launch
  // Of the abort word (device/kernel/look.h): what the launch's first block has read, when a wait has read it last, and
  // whether one has found it set, which is final.
  uint32_t look, look_tick, aborted;
};

// The first wait that reached its deadline; in host memory that the device maps, so that the host can always read it.
struct Expired {
  uint32_t set;  // 0: none; 1: being written; 2: complete
  int32_t rank, block, step, peer;
  uint32_t slot;                 // of the flag; kPushedData: a wait for data that `peer` pushes
  uint64_t epoch, wanted, seen;  // wanted, seen: values of the flag
  uint64_t launch;               // stream_epoch of its Work
};
constexpr uint32_t kPushedData = plan::kMaxDeviceSlots;

// All of a launch but its steps.
struct WorkHead {
  int32_t rank, world;
  int32_t blocks;  // SPIN: the same on all ranks. STREAM: of a row of steps, at most; 0: as many as fit on the device
  int32_t steps;
  int32_t captured;       // not 0: in a graph, which may be replayed after the group has ended
  int32_t spans_devices;  // STREAM: not 0: ranks write to the memory of devices that are not theirs
  Epoch* epoch;
  uint64_t
      stream_epoch;  // number of the launch, from 1, counted by the host; the epoch with STREAM, where no kernel counts
  uint64_t deadline_ns;  // per wait
  double divisor;        // of finished sums; 0: none
  char* input[plan::kMaxDeviceRanks];
  char* output[plan::kMaxDeviceRanks];
  char* stage[plan::kMaxDeviceRanks];
  char* pushed[plan::kMaxDeviceRanks];  // zero at first
  int64_t pushed_bytes;                 // per writer and epoch parity: twice the bytes of its data
  Flags* flags[plan::kMaxDeviceRanks];  // zero at first
  uint32_t* abort;                      // host-mapped; not 0 ends every wait
  // By rank, for work whose abort must reach all ranks, such as work on the callers' own memory; else null.
  uint32_t* aborts[plan::kMaxDeviceRanks];
  Expired* expired;
};

// What one launch runs on one rank. A kernel's argument is copied to the device at every launch, all of it, so there
// are two: most plans have few steps.
template <int kMost>
struct WorkOf : WorkHead {
  plan::DeviceStep step[kMost];
};
using Work = WorkOf<plan::kMaxDeviceSteps>;
constexpr int kFewSteps = 40;  // all plans of eight ranks but those of rings
using ShortWork = WorkOf<kFewSteps>;

// STREAM: the flag value of this post or await in launch `stream_epoch`.
inline uint64_t stream_value(uint64_t stream_epoch, const plan::DeviceStep& step) {
  return stream_epoch * kValuesPerEpoch + step.value;
}

// One launch of the fused step on one rank: it sums the gradients of all ranks, steps this rank's shard by Adam or
// AdamW, and stores the new parameters to the other ranks. Plain data: a kernel's argument.
//
// Everything is float32 and 16-byte aligned. gradients[r] and parameters[r]: this rank's shard in rank r's memory, in
// whole packs; for another rank they may be the same memory. State has `count` elements. The kernel does not
// synchronise: a barrier before it ensures that all gradients are there and no rank reads parameters, a barrier after
// it that parameters may be read and gradients overwritten.
struct AdamWork {
  int32_t rank, world;
  int64_t count;
  double divisor;  // of the sum; 0: none
  float* gradients[plan::kMaxDeviceRanks];
  float* parameters[plan::kMaxDeviceRanks];  // this rank's is read; null for a rank that gets none
  float* state[3];                           // as in StepArrays; the last with amsgrad only
  kernels::AdamScalars scalars;
  uint32_t* abort;  // host-mapped; not 0: nothing is stepped
  Epoch* epoch;     // of the plans on the same stream; the step is none of its launches
};

// One launch that encodes floating-point elements to blocks of a wire type, or decodes them, in the format of
// kernels/codec.h. Plain data: a kernel's argument.
struct CodecWork {
  const char* from;  // both 16-byte aligned; they do not overlap
  char* to;
  int64_t count;  // elements
  int64_t held;   // encoding: valid elements; the rest of `count` are taken as zeros
  DType element;  // float32, float64, float16 or bfloat16
  WireType wire;  // not fp32, which encodes nothing
  bool encodes;   // else: decodes
};

}  // namespace ringdp::gpu
