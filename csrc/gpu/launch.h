// From a device plan and everybody's addresses to what a kernel takes.
#pragma once
#include <cstdint>

#include "gpu/device/work.h"
#include "plan/device_plan.h"

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
  uint32_t* aborts[plan::kMaxDeviceRanks] = {};  // where windows are callers' own memory; else null
  Expired* expired = nullptr;
};

// Of one launch.
struct LaunchFacts {
  int64_t input_at = 0, output_at = 0;  // bytes in everybody's window
  double divisor = 0;                   // of a sum; 0: none
  uint64_t deadline_ns = 0;             // of every wait
  int blocks = 1;
  uint64_t stream_epoch = 0;            // counted by the host
  bool captured = false;
  int64_t input_step = 0;               // bytes by which the input of a rank lies behind that of the rank before
};

Work work_of(const plan::DevicePlan& plan, const Addresses& addresses, const LaunchFacts& facts);

}  // namespace ringdp::gpu
