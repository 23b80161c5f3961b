// Runs a real ring all-reduce of small float vectors, all ranks in one thread, and notes what each rank holds when.
//
// The plan, the executor and the shared-memory links are the product's own; for teaching and for tests.
#pragma once
#include <cstdint>
#include <vector>

#include "base/env.h"
#include "trace/counters.h"

namespace ringdp::collective {

struct RingEvent {
  enum class Kind { kPartialSum, kFinalSum, kCopy };
  Kind kind = Kind::kCopy;
  int rank = 0;
  int round = 0;      // of the receive that brought it, from 0
  int64_t begin = 0;  // first element
  std::vector<float> values;
};

struct Walkthrough {
  std::vector<RingEvent> events;            // by round, then rank
  std::vector<std::vector<float>> results;  // by rank
  std::vector<trace::Totals> totals;        // by rank, as counted while running
};

// One input vector per rank, all of one length. InvalidArgument on none, unequal ones, or more than 64 ranks.
Walkthrough walk_ring(const std::vector<std::vector<float>>& inputs, Order order);

}  // namespace ringdp::collective
