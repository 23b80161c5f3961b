// Which executor runs a group's device plans, and which ranks can access which.
//
// All ranks make the same decision, from what all of them know.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/plan/catalog.h"
#include "device/runtime/peer_info.h"

namespace ringdp::gpu {

struct Placement {
  int executor = RD_GPU_SPIN;   // or RD_GPU_STREAM
  int blocks = 0;               // at most, of each rank; STREAM: 0: as many as fit on the device
  bool shares_devices = false;  // some ranks have the same device
  bool spans_devices = false;   // STREAM: some have different devices
  std::string why_not;          // not empty when no executor can run on these ranks
  std::string why;
};

// SPIN where the kernels of all ranks can run at the same time: each rank has a device of its own, or those that share
// one are threads of one process and their kernels fit on it together. Else STREAM, where the devices support stream
// waits: kernels of several processes on one device take turns, so a polling kernel would block the one it waits for.
// Neither on different MIG instances, nor where processes share a device through MPS. `most_blocks`: of the setting; 0:
// blocks_for(). InvalidArgument, the same on all ranks, when the kernels of that many would not fit on a device.
Placement place(const std::vector<PeerInfo>& infos, int most_blocks = 0);

// Blocks of each rank, at most, when so many ranks share a device; SPIN.
int blocks_for(int multiprocessors, int ranks);
// Of a launch: one pack for every thread. The same on all ranks, because block b of one meets block b of the others.
int blocks_of(const plan::Problem& problem, plan::DeviceAlgorithm algorithm, int most);

// Which ranks can access which; `reached[r]` has bit p set when rank r has mapped the memory of rank p.
enum class Reach { kAll, kNeighbours, kTooFew };
Reach reach_of(const std::vector<uint32_t>& reached);

}  // namespace ringdp::gpu
