// One thing that happened in this process: what the recorder keeps, and dumps are made of.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace ringdp::trace {

enum class Kind : uint8_t {
  // Of a collective, by number `seq` of its group.
  kEnqueued,  // called here; `name` is the collective
  kStarted,   // its turn has come, and its inputs are there
  kArrived,   // every rank has entered it; `peer`: whose note came last, the own rank when all others' were there
  kBlocked,   // as it ended: `peer` was sent `bytes` for which its link had no room at first, in `ns` altogether
  kFinished,  // `name` is the plan's algorithm
  kFailed,
  // Of a thread of the caller's: it was held by a wait for a collective or message of this group for `ns` until now.
  kWaited,
  // Of a step of DistributedDataParallel; `seq` counts synchronised steps, `peer` is a bucket where there is one.
  kForward,   // began
  kBackward,  // the forward pass ended
  kReady,     // the last gradient of a bucket arrived
  kLaunched,  // its collective was started
  kDone,      // its collective ended
  kComputed,  // the backward pass had nothing left but to wait
  kStepped,   // every gradient is in place
};
constexpr int kKindCount = 14;
const char* name_of(Kind kind);  // "enqueued", "started", ...

struct Event {
  Kind kind = Kind::kEnqueued;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  int32_t peer = -1;
  int32_t group = -1;         // number that Recorder::open() gave; -1: of no group
  int32_t thread = 0;         // the system's id; Recorder::note() fills it in
  int64_t time_ns = 0;        // steady_clock
  uint64_t seq = 0;
  int64_t bytes = 0;          // of the tensor, or of all parts together; of a bucket: its gradients
  int64_t ns = 0;
  const char* name = nullptr;  // lives as long as the process
};

}  // namespace ringdp::trace
