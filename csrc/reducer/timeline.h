// When things happened in the latest step, in steady_clock nanoseconds: what overlap is computed from.
//
// 0 means "not in this step". Written under the reducer's lock, read as a copy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringdp::reducer {

struct Timeline {
  struct OfBucket {
    int64_t ready = 0;     // its last gradient arrived
    int64_t launched = 0;  // its collective was started
    int64_t done = 0;      // its collective ended
  };

  int64_t step = 0;  // forward passes that were synchronised, this one included
  int64_t forward = 0, backward = 0;  // began; backward: when forward ended
  int64_t computed = 0;               // the backward pass had nothing left but to wait
  int64_t finished = 0;               // every .grad was in place
  std::vector<OfBucket> buckets;

  void begin_backward(int64_t now, size_t count) {
    backward = now;
    computed = finished = 0;
    buckets.assign(count, {});
  }
};

}  // namespace ringdp::reducer
