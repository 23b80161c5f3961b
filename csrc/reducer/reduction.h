// One bucket's collective in flight, the time when it ended, and sinks that use its result while it arrives.
//
// Collectives of a group run in the order in which they are started, so all ranks must start, and finish, reductions in
// the same order. One thread at a time.
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

  // Waits for the collective and returns its result; called once. Throws the collective's error.
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

  // When the collective ended; or, if that is not known, the time of the first get(): for collectives of a device,
  // which end on a stream, and for works without a Future.
  int64_t get() const;

 private:
  std::shared_ptr<std::atomic<int64_t>> ns_ = std::make_shared<std::atomic<int64_t>>(0);
};

// Consumes a bucket's mean piece by piece while it is still in the cache; ZeRO's optimizer step is one.
//
// Elements are counted from the beginning of this rank's part. Every element is taken once, or only some of them if the
// reduction fails. Calls come one after the other, from any thread.
class ShardSink {
 public:
  virtual ~ShardSink() = default;

  // `means`: elements begin..begin+count in the bucket's type, valid during the call. Must not throw.
  virtual void take(int64_t begin, int64_t count, const void* means) = 0;

  // If not null, a device reduces and steps in one call, and take() is not called; only for a group whose backend
  // supports that. begun() gets the Work of that call. wait() makes the caller's stream wait for it, and throws a known
  // failure every time.
  virtual const backend::ShardStep* on_device() const { return nullptr; }
  virtual void begun(c10::intrusive_ptr<c10d::Work>) {}
  virtual void wait() {}
};

}  // namespace ringdp::reducer
