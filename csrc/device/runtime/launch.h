// Turns a device plan and the addresses of all ranks' memory into a kernel's argument, and names the launch for whoever
// watches it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "device/kernel/work.h"
#include "device/plan/plan.h"

namespace ringdp::gpu {

// Addresses of the ranks' memory on one rank's device, by rank; null where it is not mapped.
struct Addresses {
  char* window[plan::kMaxDeviceRanks] = {};
  char* stage[plan::kMaxDeviceRanks] = {};
  char* pushed[plan::kMaxDeviceRanks] = {};
  Flags* flags[plan::kMaxDeviceRanks] = {};
  int64_t pushed_bytes = 0;
  Epoch* epoch = nullptr;
  uint32_t* abort = nullptr;
  uint32_t* aborts[plan::kMaxDeviceRanks] = {};  // where an abort must reach all ranks; else null
  Expired* expired = nullptr;
};

// The parameters of one launch.
struct LaunchFacts {
  int64_t input_at = 0, output_at = 0;  // offsets in the windows
  double divisor = 0;                   // of a sum; 0: none
  uint64_t deadline_ns = 0;             // per wait
  int blocks = 1;
  uint64_t stream_epoch = 0;  // counted by the host
  bool captured = false;
  int64_t input_stride = 0;                          // bytes between the inputs of consecutive ranks
  char *own_input = nullptr, *own_output = nullptr;  // this rank's tensors; null: in its window
  bool spans_devices = false;                        // as in Placement
};

// A launch that may still run.
struct Launched {
  std::shared_ptr<const plan::DevicePlan> plan;  // null: none of its waits is ringdp's own, so no record names it
  uint64_t epoch = 0;                            // stream_epoch of its Work
};

// The parameters of the fused step of a contiguous part of this rank's shard.
struct StepFacts {
  int64_t at = 0;     // offset in all windows: of gradients, which the new parameters replace in other ranks' windows
  bool gives = true;  // whether other ranks get the parameters
  int64_t count = 0;
  double divisor = 0;           // of the sum of the gradients
  float* parameters = nullptr;  // of this rank, up to the end of the last pack
  float* state[3] = {};         // as in StepArrays
  kernels::AdamScalars scalars = {};
};

AdamWork adam_work_of(int rank, int world, const Addresses& addresses, const StepFacts& facts);

Work work_of(const plan::DevicePlan& plan, const Addresses& addresses, const LaunchFacts& facts);

// STREAM launches whose waits do not end: the host finds the rank that is waited for, and ends the waits.
//
// Such waits are stream operations, which nothing on the device can interrupt. Their flags are in host memory that all
// ranks map, so the watchdog of any rank can end them. May run concurrently with launches.

// The first wait of the launch that has not ended. `flags`: this rank's, at their host address.
std::optional<Expired> waited_for(const Launched& launch, const Flags& flags);

// Ends every wait for these flags, in this and all later launches, because the group has failed.
void release_waits(Flags& flags);

}  // namespace ringdp::gpu
