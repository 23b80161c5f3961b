// Ranks whose devices run collectives together, however they reach each other: by shared memory (peer_memory.h), or
// by messages of NCCL (nccl/ranks.h).
//
// launch() and teardown() are called by one thread at a time; all others by any.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/kernel/work.h"
#include "device/plan/select.h"
#include "device/runtime/pieces.h"
#include "device/runtime/segments.h"

namespace ringdp::gpu {

class PeerMemory;

class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;

  virtual const std::string& why_not() const = 0;  // empty: collectives can run here; alike on all ranks
  virtual std::string description() const = 0;

  // Why this one cannot run here, or "". Depends only on what all ranks know.
  virtual std::string why_not(const plan::Problem& problem) const = 0;
  virtual plan::DeviceChoice choose(const plan::Problem& problem) const = 0;
  virtual Pieces cut(const plan::Problem& problem) const = 0;

  virtual char* window() const = 0;  // this rank's
  // What only ranks can do that share memory of their devices; null: these do not.
  virtual PeerMemory* sharing() { return nullptr; }
  // For how long after a call's deadline its kernels may still say more exactly which rank they waited for.
  virtual std::chrono::milliseconds grace() const = 0;

  // One piece, in the order of the stream. Error(kInternal) when the device takes it no more. Null: it is not
  // known which rank it waits for.
  struct Piece {
    plan::Problem problem;                // whole packs
    int64_t input_at = 0, output_at = 0;  // in the window, or behind segment.at
    double divisor = 0;
    uint64_t deadline_ns = 0;
    // Elements of each part of the input; behind them anything may lie in the window. None: the parts are whole.
    std::vector<int64_t> held = {};
    // The rest is of ranks that share memory. Captured: into a graph, it runs when that is replayed; SPIN only.
    bool captured = false;
    SegmentRef segment = {};
    int64_t input_step = 0;  // bytes by which the input of a rank lies behind that of the rank before
  };
  virtual std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) = 0;
  // The stream goes on once checked(number) was called.
  virtual void await_checked(uint32_t number, void* stream) const = 0;
  // Memory of this rank's device is void if the group is over by then.
  virtual void poison(void* memory, int64_t bytes, void* stream) const = 0;

  virtual void checked(uint32_t number) = 0;
  // Ends every wait of this rank's device, now or with the next look(); results that are not there by then are void.
  virtual void abort() = 0;
  virtual bool aborted() const = 0;
  // Again and again while something is under way: does what must not be done where abort() may be called. What has
  // failed beside the group, or "".
  virtual std::string look() { return ""; }
  // Whom this rank's device has waited for too long; or, of a launch, waits for now that it has come so far.
  virtual std::optional<Expired> expired() const = 0;
  virtual std::optional<Expired> waits_for(const Work& work) const = 0;

  // Lets go of the others, once nothing of this rank is under way. No launch after it.
  virtual void teardown() = 0;
  virtual bool is_alone() const = 0;  // all others have unmapped this rank's memory
};

}  // namespace ringdp::gpu
