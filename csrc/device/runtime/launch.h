// From a device plan and everybody's addresses to what a kernel takes.
#pragma once
#include <cstdint>
#include <optional>

#include "device/kernel/work.h"
#include "device/plan/plan.h"

namespace ringdp::gpu {

// Where everybody's memory is for one rank's device, by rank; null where it reaches none.
struct Addresses {
  char* window[plan::kMaxDeviceRanks] = {};
  char* stage[plan::kMaxDeviceRanks] = {};
  char* pushed[plan::kMaxDeviceRanks] = {};
  Flags* flags[plan::kMaxDeviceRanks] = {};
  int64_t pushed_bytes = 0;
  Epoch* epoch = nullptr;
  uint32_t* abort = nullptr;
  uint32_t* aborts[plan::kMaxDeviceRanks] = {};  // of what ends for all at once; else null
  Expired* expired = nullptr;
};

// Of one launch.
struct LaunchFacts {
  int64_t input_at = 0, output_at = 0;  // bytes in everybody's window
  double divisor = 0;                   // of a sum; 0: none
  uint64_t deadline_ns = 0;             // of every wait
  int blocks = 1;
  uint64_t stream_epoch = 0;  // counted by the host
  bool captured = false;
  int64_t input_step = 0;  // bytes by which the input of a rank lies behind that of the rank before
};

// Of the fused step of a run of elements of this rank's shard.
struct StepFacts {
  int64_t at = 0;     // bytes in everybody's window: gradients, in whose place others get the new parameters
  bool gives = true;  // whether they do
  int64_t count = 0;
  double divisor = 0;           // of the sum of the gradients
  float* parameters = nullptr;  // this rank's own, to the end of their last pack
  float* state[3] = {};         // as StepArrays
  kernels::AdamScalars scalars = {};
};

AdamWork adam_work_of(int rank, int world, const Addresses& addresses, const StepFacts& facts);

Work work_of(const plan::DevicePlan& plan, const Addresses& addresses, const LaunchFacts& facts);

// What the host does about a STREAM launch whose waits do not end: says whom it waits for, and releases it.
//
// Such waits are operations of a stream, which nothing on the device can interrupt. Their flags lie in host memory that
// all ranks map, so a watchdog of any rank can end them. Thread-safe against launches.

// The first wait of the launch that has not come, `flags` being this rank's at their host address.
std::optional<Expired> waited_for(const Work& work, const Flags& flags);

// Ends every wait for one of these flags, now and in all later launches: the group is over.
void release_waits(Flags& flags);

}  // namespace ringdp::gpu
