// Runs no plan but writes it down: as a table for people, as JSON for tools, and as totals that counters must equal.
//
// Pure functions of the plan. Bytes throughout.
#pragma once
#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace ringdp::collective {

struct PlanTotals {
  int64_t steps = 0;
  int64_t rounds = 0;  // highest round + 1; 0 when nothing is sent or received
  int64_t sends = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t memory_read = 0, memory_written = 0;  // by folds and copies, also by copies that turn out to be in place
};

PlanTotals totals(const plan::Plan& plan);

// One table per lane that has steps: number, verb, round, peer, bytes, what moves where, what it waits for.
std::string to_text(const plan::Plan& plan);

// One object: plan fields, totals, and lanes with their steps.
std::string to_json(const plan::Plan& plan);

}  // namespace ringdp::collective
