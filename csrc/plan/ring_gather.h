// What the ring's schedules share: neighbours, lanes, and the pass in which every rank forwards what it received.
#pragma once
#include <functional>
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

struct RingLanes {
  RingLanes(Builder& builder, const Problem& problem);

  int next, previous;    // neighbours' ranks
  int send, recv, fold;  // lanes: to next, from previous, own memory
};

struct RingGather {
  int first = 0;                               // chunk that this rank holds at the start; the next rank holds first + 1
  int base_round = 0;
  int64_t segments = 0;                        // per chunk
  std::function<Ref(int chunk, int64_t)> own;  // where the held chunk is sent from
  std::function<Ref(int chunk, int64_t)> ref;  // where the other chunks are received and forwarded from
  std::vector<After> ready;                    // by segment: the held chunk is complete; empty: from the start
};

// N-1 rounds: send what you hold, then what you received last. Empty segments are left out on both sides.
void gather_round_the_ring(Builder& builder, const RingLanes& lanes, int world, const RingGather& gather);

}  // namespace ringdp::plan
