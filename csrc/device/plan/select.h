// Chooses the device plan of a collective, with a reason that can be printed: over memory by size, number of ranks and
// topology, between hosts by the group's settings.
//
// All ranks make the same choice, because it depends only on what all of them know. Sizes are bytes of one rank's
// tensor. Every plan chosen over memory sums in rank order, so no threshold changes a result.
#pragma once
#include <string>

#include "device/plan/catalog.h"

namespace ringdp::plan {

struct DeviceTopology {
  int world = 1;
  bool full_mesh = true;  // every pair of ranks is connected; else only neighbours in rank order
  bool can_push = true;   // the kernels of all ranks run at the same time, so they can wait for each other's data
  // Over NVLink; for others see device/runtime/links.h.
  double bytes_per_second = 370e9;  // of one rank, each way: payload of an H100's NVLink 4
  double barrier_seconds = 3e-6;    // a round of flags between all ranks
  int64_t stage_bytes = 0;          // in each rank's arena
  int64_t pushed_bytes = 0;         // the same, per writer and epoch parity
};

struct DeviceChoice {
  DeviceAlgorithm algorithm = DeviceAlgorithm::kDirect;
  std::string why;
};

// On a partial mesh all_reduce and reduce_scatter take the ring; no other collective has a plan for one. Collectives
// that only move data are always direct.
DeviceChoice select_device_plan(const DeviceTopology& topology, Collective what, int64_t bytes);

// The largest size at which one_shot beats direct: it receives (N-1)S instead of 2(N-1)/N S, but saves one t_b, because
// no rank waits at the end for stores to arrive: t_b B N/((N-1)(N-2)). With two ranks that is any size that the stage
// holds. A reduce has the same limit; its root receives as much either way, and it needs no stage.
int64_t one_shot_limit(const DeviceTopology& topology);

// The largest size at which push beats one_shot: it saves one t_b but moves each byte twice (a store and a poll), in
// words of which half is a flag: t_b B / (4 (N-1)).
int64_t push_limit(const DeviceTopology& topology);

// "all_reduces of up to 39642 bytes by push, up to 211428 bytes by one_shot, others by direct"; "" where size decides
// nothing.
std::string text_of_limits(const DeviceTopology& topology);

// ---- devices that only exchange messages

// Why this collective has no such plan, or "".
std::string why_no_link_plan(const LinkSettings& link_settings, const Problem& problem);

// direct; for sums also ring/rank, ring/rotated or hierarchy. Precondition: why_no_link_plan() is "".
DeviceChoice select_link_plan(const LinkSettings& link_settings, const Problem& problem);

}  // namespace ringdp::plan
