// The ranks of a group whose devices run collectives, over shared memory (peer_memory.h) or over NCCL (nccl/ranks.h).
//
// launch() and teardown() are called by one thread at a time, the other functions by any thread.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/plan/select.h"
#include "device/runtime/launch.h"
#include "device/runtime/pieces.h"
#include "device/runtime/symmetric_buffers.h"

namespace ringdp::gpu {

class PeerMemory;

class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;

  virtual const std::string& why_not() const = 0;  // "" when devices can run collectives; the same on all ranks
  virtual std::string description() const = 0;

  // Why the devices cannot run this collective, or "". Depends only on what all ranks know.
  virtual std::string why_not(const plan::Problem& problem) const = 0;
  virtual plan::DeviceChoice choose(const plan::Problem& problem) const = 0;
  virtual Pieces cut(const plan::Problem& problem) const = 0;

  virtual char* window() const = 0;  // of this rank
  // The operations of ranks that share device memory; null when these do not.
  virtual PeerMemory* sharing() { return nullptr; }
  // How long after a call's deadline to wait for its kernels to report the rank that they waited for.
  virtual std::chrono::milliseconds grace() const = 0;

  struct Piece {
    plan::Problem problem;                // whole packs
    int64_t input_at = 0, output_at = 0;  // bytes from the start of the window, or from buffer.at
    double divisor = 0;
    uint64_t deadline_ns = 0;
    // How many elements of each input part are valid; the window holds garbage behind them. Empty: all are.
    std::vector<int64_t> held = {};
    // The rest is only for ranks that share memory. `captured`: the launch goes into a CUDA graph; SPIN only.
    bool captured = false;
    BufferRef buffer = {};
    int64_t input_stride = 0;  // bytes between the inputs of consecutive ranks
    // This rank's tensors in place of its window, where runs_on_own_tensors(); whole packs, aligned to one.
    char *own_input = nullptr, *own_output = nullptr;
  };
  // Whether the plan of a piece touches no rank's tensors but this one's, so that they need not lie in the window.
  virtual bool runs_on_own_tensors(const plan::Problem& /*piece*/, const plan::DeviceChoice& /*choice*/) const {
    return false;
  }
  // Launches a piece on the stream. Error(kInternal) when the device no longer accepts work.
  virtual Launched launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) = 0;
  // Makes the stream note that it has come to this call; turn(): the last to which it has.
  virtual void mark_turn(uint32_t number, void* stream) const = 0;
  virtual uint32_t turn() const = 0;
  // Makes the stream wait until release(number).
  virtual void await_release(uint32_t number, void* stream) const = 0;
  // Fills memory of this rank's device with NaN if the group has failed by the time the stream gets there.
  virtual void poison(void* memory, int64_t bytes, void* stream) const = 0;
  // Copies a result to memory of this rank's device, or fills that with NaN if the group has failed by then.
  virtual void deliver(void* to, const void* from, int64_t bytes, void* stream) const = 0;

  virtual void release(uint32_t number) = 0;  // of calls whose headers all ranks have compared
  // Ends every wait of this rank's device, now or with the next poll(); unfinished results become NaN.
  virtual void abort() = 0;
  virtual bool aborted() const = 0;
  // Called repeatedly while work is in flight: does what abort() must not do itself. Returns a failure that the group
  // does not know yet, or "".
  virtual std::string poll() { return ""; }
  // The wait of this rank's device that reached its deadline; or the wait that a launch is in now.
  virtual std::optional<Expired> expired() const = 0;
  virtual std::optional<Expired> waits_for(const Launched& launch) const = 0;

  // Disconnects from the peers, once no work of this rank is in flight. No launch may follow.
  virtual void teardown() = 0;
  virtual bool is_unmapped_by_peers() const = 0;
};

}  // namespace ringdp::gpu
