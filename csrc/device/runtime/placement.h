// Which executor runs a group's device plans, and who reaches whom: values, so that they can be printed and tested.
//
// All ranks decide alike, from what all of them know.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/runtime/peer_info.h"

namespace ringdp::gpu {

struct Placement {
  int executor = RD_GPU_SPIN;  // or RD_GPU_STREAM
  int blocks = 1;              // of each rank's kernel, SPIN
  std::string why_not;         // not empty: no executor can serve these ranks
  std::string why;
};

// SPIN where every rank's kernel can run while all others' do: each has a device of its own, or those that share one
// are threads of one process and their kernels fit side by side. Else STREAM, where the devices can wait on streams:
// kernels of several processes on one device take turns, so one that polls would keep the one it waits for from
// running.
Placement place(const std::vector<PeerInfo>& infos);

// Of each rank's kernel, where so many ranks' run side by side on a device: SPIN.
int blocks_for(int multiprocessors, int ranks);

// Whom the ranks of a group reach; `reached[r]` has bit p set when rank r has mapped the memory of p.
enum class Reach { kAll, kNeighbours, kTooFew };
Reach reach_of(const std::vector<uint32_t>& reached);

}  // namespace ringdp::gpu
