// Which device plan a collective takes, with a reason that can be printed: over memory by size, number of ranks and
// which ranks reach which, between hosts by what the group's settings ask.
//
// All ranks choose alike, because a choice depends only on what all of them know. Sizes are bytes of one rank's tensor.
// What is chosen over memory sums in rank order, so no threshold changes a result.
#pragma once
#include <string>

#include "device/plan/catalog.h"

namespace ringdp::plan {

struct DeviceTopology {
  int world = 1;
  bool full_mesh = true;            // every pair is linked alike; else neighbours in rank order are
  bool can_push = true;             // kernels of all ranks run side by side, so data can be waited for inside them
  double bytes_per_second = 370e9;  // each way, of one rank: NVLink 4 of an H100 after protocol
  double barrier_seconds = 3e-6;    // a round of flags between all ranks
  int64_t stage_bytes = 0;          // of each rank's arena
  int64_t pushed_bytes = 0;         // the same, for one writer and one parity
};

struct DeviceChoice {
  DeviceAlgorithm algorithm = DeviceAlgorithm::kDirect;
  std::string why;
};

// `bytes`: of the tensor. On a partial mesh all_reduce and reduce_scatter go round the ring; nothing else has a plan
// for one. Moves are always direct.
DeviceChoice select_device_plan(const DeviceTopology& topology, Collective what, int64_t bytes);

// Up to here one_shot beats direct: it receives (N-1)S instead of 2(N-1)/N S, but nobody waits at its exit until stores
// have arrived, which is worth a t_b: t_b B N/((N-1)(N-2)). With two ranks that is any size that the stage holds. The
// same of a reduce, whose root receives as much either way; it needs no stage.
int64_t one_shot_limit(const DeviceTopology& topology);

// Up to here push beats one_shot: it saves the barriers' t_b and carries a flag for every 4 bytes, in accesses of which
// half is data, twice per byte (written by one, polled by the other): t_b B / (4 (N-1)).
int64_t push_limit(const DeviceTopology& topology);

// ---- of devices that reach each other by messages only

// Why this collective has no such plan, or "".
std::string why_no_link_plan(const LinkWish& wish, const Problem& problem);

// direct, or for sums ring/rank, ring/rotated or hierarchy. Precondition: why_no_link_plan() is "".
DeviceChoice select_link_plan(const LinkWish& wish, const Problem& problem);

}  // namespace ringdp::plan
