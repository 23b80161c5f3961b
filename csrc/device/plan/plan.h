// A device plan is a value: what one rank does in one collective over memory that all ranks reach, a list of steps.
//
// The steps are for kernels, streams and host threads alike (device/kernel/run_steps.h). Plans of different collectives
// follow one another without more ado, because each keeps three promises. When a rank's part is over, nobody reads or
// writes that rank's tensors any more; nor the stages of its neighbours on a ring, into which its next plan may write;
// and it has heard that everybody's part has begun, so nobody is two plans ahead of anybody.
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
  int64_t input = 0, output = 0;  // elements of every rank's tensors; there is room for them where a rank has none
  int64_t stage_bytes = 0;        // that it needs of every rank's arena
  int64_t pushed_bytes = 0;       // the same, for one writer and one parity
  std::vector<DeviceStep> steps;
};

// Elements of a pack; of the raw or the wide type.
int64_t pack_elements(DType dtype, bool wide = false);

// Bytes of `count` raw elements, as `ref` holds them.
int64_t bytes_of(const DevicePlan& plan, const DeviceRef& ref, int64_t count);

// Bytes that one rank's steps read from and write to its own memory and other ranks'. Flags do not count.
struct DeviceTraffic {
  int64_t read_here = 0, read_there = 0, written_here = 0, written_there = 0;
};
DeviceTraffic traffic_of(const DevicePlan& plan);

// Whether it posts or awaits; the others read and write.
inline bool is_flag(const DeviceStep& step) {
  return step.verb == DeviceVerb::kPost || step.verb == DeviceVerb::kAwait;
}

const char* name_of(DeviceVerb verb);
const char* name_of(DeviceSpace space);
const char* name_of(DeviceSlot slot);

// "all_reduce direct float32 SUM, rank 0 of 2: 5 steps", then a line for each step.
std::string text_of(const DevicePlan& plan);
std::string text_of(const DeviceStep& step);  // "copy 8 elements: input -> stage of 1 at 4"

}  // namespace ringdp::plan
