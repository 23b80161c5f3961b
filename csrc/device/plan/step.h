// One step of a plan over memory that every rank of a host can reach: what a kernel, a stream, or a host thread runs.
//
// Plain data, so that kernels take it by value. A device plan is one list of steps per rank, run in order; work is
// divided among blocks, and block b of a rank synchronises only with block b of the others. Offsets and counts are in
// elements, multiples of a pack (16 bytes of the tensor's type); buffers are padded to whole packs.
#pragma once
#include <cstdint>

namespace ringdp::plan {

constexpr int64_t kDevicePackBytes = 16;
constexpr int kMaxDeviceRanks = 8;
constexpr int kMaxDeviceSteps = 192;  // of one rank; they are passed as a kernel argument
constexpr int kMaxDeviceSlots = 4;

// The flags of a pair of ranks. Each direction of a ring has its own, because the two advance independently.
enum DeviceSlot : uint8_t { kEntrySlot, kUpSlot, kDownSlot, kExitSlot };

enum class DeviceVerb : uint8_t {
  kPost,       // sets flag `slot` at `peer` to `value`, after all reads and writes of this block so far
  kAwait,      // waits until the flag `slot` that `peer` sets at this rank is at least `value`
  kSum,        // to = the sum of all ranks' `from`, in rank order, divided and rounded once
  kAdd,        // to = from + addend; divided and rounded when `finish`, else wide
  kCopy,       // to = from, raw
  kPush,       // this rank's part of the pushed data of all others = from; every 4 bytes carry a mark
  kSumPushed,  // to = the sum of its own `from` and what all others have pushed, waiting for their marks
};

// The kinds of buffers that every rank has; own and remote ones are addressed in the same way.
enum class DeviceSpace : uint8_t {
  kInput,
  kOutput,  // may be the input
  kStage,   // in the arena; raw or wide
  kPushed,  // in the arena: one part per writer and epoch parity
};

constexpr int8_t kAllRanks = -1;  // kSum reads, kSum and kCopy write, the buffers of all ranks
constexpr int8_t kOwnRank = -2;   // this rank

struct DeviceRef {
  DeviceSpace space = DeviceSpace::kInput;
  int8_t rank = kOwnRank;
  bool wide = false;   // partial sums: float32 for 16-bit floats
  int64_t offset = 0;  // elements, of the raw or the wide type
};

struct DeviceStep {
  DeviceVerb verb = DeviceVerb::kCopy;
  bool finish = false;
  int8_t peer = 0;  // kPost, kAwait
  uint8_t slot = 0;
  uint16_t value = 0;  // from 1; increases per slot and pair within one plan
  DeviceRef from, addend, to;
  int64_t count = 0;  // elements
};

inline bool is_flag(const DeviceStep& step) {
  return step.verb == DeviceVerb::kPost || step.verb == DeviceVerb::kAwait;
}

}  // namespace ringdp::plan
