// Prints plans as tables and as JSON, computes the totals that counters must equal, and walks through a ring.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "plan/plan.h"
#include "trace/counters.h"

namespace ringdp::collective {

// Pure functions of a plan, which is not run. Bytes throughout.
struct PlanTotals {
  int64_t steps = 0;
  int64_t rounds = 0;  // highest round + 1; 0 when nothing is sent or received
  int64_t sends = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t memory_read = 0, memory_written = 0;  // by folds and copies, including copies that turn out to be in place
};

PlanTotals totals(const plan::Plan& plan);

// One table per channel that has steps: number, verb, round, peer, bytes, what moves where, what it waits for.
std::string to_text(const plan::Plan& plan);

// One object: plan fields, totals, and channels with their steps.
std::string to_json(const plan::Plan& plan);

// One event of walk_ring(): the elements that a rank has just summed or received.
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

// Runs a real ring all-reduce of small float vectors, all ranks in one thread, and records what each rank holds when.
// It uses the real plan, executor and shared-memory links; for teaching and for tests. One input vector per rank, all
// of one length. InvalidArgument on none, unequal ones, or more than 64 ranks.
Walkthrough walk_ring(const std::vector<std::vector<float>>& inputs, Order order);

}  // namespace ringdp::collective
