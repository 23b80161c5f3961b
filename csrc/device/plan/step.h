// One step of a plan over memory that every rank of a host can reach: what a kernel, a stream, or a host thread runs.
//
// Plain data, so that kernels take it by value. A device plan is one list of steps per rank, run in order; work is
// divided among blocks, and block b of a rank meets block b of the others only. Offsets and counts are in elements,
// multiples of a pack (16 bytes of the tensor's type); buffers are padded to whole packs.
#pragma once
#include <cstdint>

namespace ringdp::plan {

constexpr int64_t kDevicePackBytes = 16;
constexpr int kMaxDeviceRanks = 8;
constexpr int kMaxDeviceSteps = 192;  // of one rank; they travel as a kernel's argument
constexpr int kMaxDeviceSlots = 4;

// Kinds of flags of a pair. What travels towards higher ranks and what travels towards lower ones goes at its own pace.
enum DeviceSlot : uint8_t { kEntrySlot, kUpSlot, kDownSlot, kExitSlot };

enum class DeviceVerb : uint8_t {
  kPost,       // what this block has read and written so far is done, and `peer` is told: flag `slot` becomes `value`
  kAwait,      // until the flag `slot` of `peer` for this rank is `value` or beyond
  kSum,        // to = the sum over all ranks of their `from`, in rank order, divided and rounded once
  kAdd,        // to = from + addend; with `finish` divided and rounded, else wide
  kCopy,       // to = from, raw
  kPush,       // what all others see of this rank = from: every 4 bytes travel with a flag of their own
  kSumPushed,  // to = the sum of what all have pushed to this rank and of its own `from`, waiting for their flags
};

// Everybody's buffers of the same kind are reached alike, own ones included.
enum class DeviceSpace : uint8_t {
  kInput,
  kOutput,  // may be the input
  kStage,   // of the arena, beside input and output; raw or wide
  kPushed,  // of the arena: a part per writer, twice, by the parity of the epoch
};

constexpr int8_t kEverybody = -1;  // kSum reads, kSum and kCopy write all ranks' buffers
constexpr int8_t kOwnRank = -2;    // short for this rank

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
  uint16_t value = 0;  // from 1, per slot and pair ever growing within one plan
  DeviceRef from, addend, to;
  int64_t count = 0;  // elements
};

}  // namespace ringdp::plan
