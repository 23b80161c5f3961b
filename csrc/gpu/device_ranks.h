// Ranks whose devices run collectives together, however they reach each other: by shared memory (neighbourhood.h), or
// by messages of NCCL (nccl/ranks.h).
//
// launch() and part() are called by one thread at a time; give_up(), and looking, by any.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/device/work.h"
#include "gpu/pieces.h"
#include "gpu/segments.h"
#include "plan/device_select.h"

namespace ringdp::gpu {

class Neighbourhood;

class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;

  virtual const std::string& why_not() const = 0;  // empty: collectives can run here; alike on all ranks
  virtual std::string description() const = 0;

  // Why this one cannot run here, or "". Depends only on what all ranks know.
  virtual std::string why_not(const plan::DeviceProblem& problem) const = 0;
  virtual plan::DeviceChoice choose(const plan::DeviceProblem& problem) const = 0;
  virtual Pieces cut(const plan::DeviceProblem& problem) const = 0;

  virtual char* window() const = 0;  // this rank's
  // What only ranks can do that share memory of their devices; null: these do not.
  virtual Neighbourhood* sharing() { return nullptr; }
  // For how long after a call's deadline somebody else may still say better whom it has waited for.
  virtual std::chrono::milliseconds grace() const = 0;

  // One piece, in the order of the stream. Error(kInternal) when the device takes it no more. Null: nobody can say whom
  // it waits for.
  struct Piece {
    plan::DeviceProblem problem;  // whole packs
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
  virtual void give_up() = 0;
  virtual bool given_up() const = 0;
  // Again and again while something is under way: does what must not be done where give_up() may be called. What has
  // failed beside the group, or "".
  virtual std::string look() { return ""; }
  // Whom this rank's device has waited for too long; or, of a launch, waits for now that it has come so far.
  virtual std::optional<Expired> expired() const = 0;
  virtual std::optional<Expired> waits_for(const Work& work) const = 0;

  // Lets go of the others, once nothing of this rank is under way. No launch after it.
  virtual void part() = 0;
  virtual bool is_alone() const = 0;  // all others have let go of this rank's memory
};

}  // namespace ringdp::gpu
