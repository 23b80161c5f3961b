// Events of this process, and the ring buffer that keeps the latest of them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"

namespace ringdp::trace {

// The clock of all events: steady_clock in nanoseconds.
inline int64_t in_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

inline int64_t now_ns() { return in_ns(std::chrono::steady_clock::now()); }

enum class Kind : uint8_t {
  // A collective, number `seq` of its group.
  kEnqueued,  // called here; `name` is the collective
  kStarted,   // the earlier ones have ended, and its inputs are ready; between hosts it may have sent and received
              // before
  kArrived,   // every rank has entered it; `peer`: whose header came last, this rank if all others were already there;
              // at the time of kStarted if all had entered it before
  kBlocked,   // at its end: sending `bytes` to `peer` took `ns`, because the link had no room for them at first
  kFinished,  // `name` is the plan's algorithm
  kFailed,
  // A calling thread has waited `ns`, until now, for a collective or message of this group.
  kWaited,
  // A step of DistributedDataParallel; `seq` counts synchronised steps, `peer` is a bucket where there is one.
  kForward,   // began
  kBackward,  // the forward pass ended
  kReady,     // the last gradient of a bucket arrived
  kLaunched,  // its collective was started
  kDone,      // its collective ended
  kComputed,  // the backward pass had nothing left but to wait
  kStepped,   // every gradient is in place
  // A world of an elastic job has begun after `ns` of recovery: `seq` is its epoch, `peer` its size, `bytes` its step.
  kRegrouped,
};
constexpr int kKindCount = 15;
const char* name_of(Kind kind);  // "enqueued", "started", ...

// Whether the input or the output of a collective is one rank's part of the whole tensor.
enum class Part : uint8_t { kNeither, kInput, kOutput };

// One event, as the recorder keeps it and dumps contain it.
struct Event {
  Kind kind = Kind::kEnqueued;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  Part part = Part::kNeither;  // of kEnqueued
  int32_t peer = -1;
  int32_t group = -1;   // the number from Recorder::open(); -1: of no group
  int32_t thread = 0;   // gettid(); set by Recorder::note()
  int64_t time_ns = 0;  // steady_clock
  uint64_t seq = 0;
  int64_t bytes = 0;  // of the whole tensor, or of a bucket's gradients
  int64_t ns = 0;
  const char* name = nullptr;  // static or interned()
};

// The latest events of a process, in a ring of fixed size. Any thread writes and reads; none waits.
//
// A writer draws a ticket, claims that ticket's slot by its stamp, fills it and stamps it again (a seqlock). If another
// writer is still filling the slot, because the ring wrapped while its thread was stopped, the event counts as lost. A
// reader accepts slots whose stamp is the same before and after.
class Ring {
 public:
  explicit Ring(size_t capacity) : capacity_(capacity), slots_(new Slot[capacity]) {}  // 0: keeps nothing

  void write(const Event& event);
  std::vector<Event> read() const;  // oldest first, by time

  size_t capacity() const { return capacity_; }
  uint64_t written() const { return tickets_.load(std::memory_order_relaxed); }  // including overwritten ones
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kWords = (sizeof(Event) + 7) / 8;
  struct alignas(64) Slot {
    std::atomic<uint64_t> stamp{0};  // 2 * ticket + 2 of the event in it; odd: being filled; 0: empty
    std::atomic<uint64_t> words[kWords];
  };
  static_assert(sizeof(Slot) == 64);

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> tickets_{0}, lost_{0};
};

}  // namespace ringdp::trace
