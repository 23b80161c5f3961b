// One bucket's collective in flight: what a launch returns and the end of the backward pass waits for.
//
// Collectives of a group run in the order of their starts on every rank, so reductions are started, and finished, in the
// same order everywhere. One thread at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trace/clock.h"

namespace ringdp::reducer {

using trace::now_ns;

class Reduction {
 public:
  virtual ~Reduction() = default;

  // Blocks until the result is there; the tensor that holds it. Once. Fails with what the collective failed with.
  virtual at::Tensor finish() = 0;

  // steady_clock nanoseconds at which the collective ended; valid after finish().
  virtual int64_t ended_ns() const = 0;
};

}  // namespace ringdp::reducer
