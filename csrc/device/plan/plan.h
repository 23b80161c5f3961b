// A device plan: the list of steps that one rank runs in one collective over memory that all ranks can access.
//
// Kernels, streams and host threads run the same steps (device/kernel/run_steps.h). Plans of different collectives can
// be launched back to back, because each keeps three promises. When a rank finishes its plan, no other rank reads or
// writes its tensors any more; no rank reads or writes the stages of its ring neighbours, into which its next plan may
// write; and it knows that every rank has started this plan, so no rank is two plans ahead of another.
#pragma once
#include <string>
#include <vector>

#include "device/plan/step.h"
#include "plan/plan.h"

namespace ringdp::plan {

static_assert(kPackBytes == kDevicePackBytes);

struct DevicePlan {
  std::string algorithm;  // "direct", "ring/rank", ...
  Collective what = Collective::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int rank = 0, world = 1;
  int64_t input = 0, output = 0;  // elements of each rank's tensors; a rank that has none still provides room
  int64_t stage_bytes = 0;        // bytes of stage that it needs in each rank's arena
  int64_t pushed_bytes = 0;       // the same of pushed data, per writer and per epoch parity
  std::vector<DeviceStep> steps;
};

// How many elements of the raw or the wide type a pack holds.
int64_t pack_elements(DType dtype, bool wide = false);

// Bytes that `count` elements take in the type that `ref` holds, raw or wide.
int64_t bytes_of(const DevicePlan& plan, const DeviceRef& ref, int64_t count);

// Bytes that one rank's steps read and write, in its own memory and in that of other ranks. Flags are not counted.
struct DeviceTraffic {
  int64_t read_local = 0, read_remote = 0, written_local = 0, written_remote = 0;
};
DeviceTraffic traffic_of(const DevicePlan& plan);

const char* name_of(DeviceVerb verb);
const char* name_of(DeviceSpace space);
const char* name_of(DeviceSlot slot);

// "all_reduce direct float32 SUM, rank 0 of 2: 5 steps", then one line per step.
std::string text_of(const DevicePlan& plan);
std::string text_of(const DeviceStep& step);  // "copy 8 elements: input -> stage of 1 at 4"

}  // namespace ringdp::plan
