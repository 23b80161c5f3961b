// One bucket's collective in flight, when it ended, and what may use its result while it arrives.
//
// Collectives of a group run in the order of their starts on every rank, so reductions are started, and finished, in
// the same order everywhere. One thread at a time.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstdint>
#include <memory>

#include "trace/events.h"

namespace ringdp::backend {
struct ShardStep;
}

namespace ringdp::reducer {

using trace::now_ns;

class Reduction {
 public:
  virtual ~Reduction() = default;

  // Blocks until the result is there and returns the tensor that holds it; called once. Throws the collective's error.
  virtual at::Tensor finish() = 0;

  // steady_clock nanoseconds at which the collective ended; valid after finish().
  virtual int64_t ended_ns() const = 0;
};

// When a collective of any backend ended, which c10d's Work does not say. Copies share one time.
class EndTime {
 public:
  EndTime() = default;
  explicit EndTime(c10d::Work& work);
  explicit EndTime(c10::ivalue::Future& future);

  // now_ns() at the end, or at the first call of get() where the end was not seen: for collectives of a device, which
  // end on a stream, and for works without a Future.
  int64_t get() const;

 private:
  std::shared_ptr<std::atomic<int64_t>> ns_ = std::make_shared<std::atomic<int64_t>>(0);
};

// Uses parts of a bucket's mean while they are still in the cache (ZeRO's step).
//
// Elements are counted from the beginning of this rank's part. Every element is taken once; only some of them when the
// reduction fails on the way. Calls come one after the other, from any thread.
class ShardSink {
 public:
  virtual ~ShardSink() = default;

  // `means`: elements begin..begin+count in the bucket's type, valid during the call. Must not throw.
  virtual void take(int64_t begin, int64_t count, const void* means) = 0;

  // Not null: a device reduces and steps in one call, and nothing is taken. Only for a group whose backend can. Once
  // begun, that call is waited for like any Work: the caller's stream waits for it, and a failure that is known is
  // thrown at every call.
  virtual const backend::ShardStep* on_device() const { return nullptr; }
  virtual void begun(c10::intrusive_ptr<c10d::Work>) {}
  virtual void wait() {}
};

}  // namespace ringdp::reducer
