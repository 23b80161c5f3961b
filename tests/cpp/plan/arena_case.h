// Problems of arena plans with small slots, and what their tests count.
#pragma once
#include "harness.h"

namespace ringdp::plan::testing {

constexpr int64_t kSlotBytes = 640;

inline Case arena_case(Collective what, int world, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kArena;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.slot_bytes = kSlotBytes;
  return c;
}

// Bytes of the piece of a slot that belongs to one of `pieces`: whole cache lines.
inline int64_t piece_bytes(int pieces) { return kSlotBytes / pieces / 64 * 64; }

inline int64_t barriers_of(const Plan& plan) {
  int64_t waits = 0;
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) waits += step.verb == Verb::kWait;
  }
  return waits;
}

}  // namespace ringdp::plan::testing
