// Ranks that share a core although others are free: whoever waits goes elsewhere.
//
// A wake-up often lands on the waker's core. Two ranks of a collective then take turns there, while the kernel looks for
// such pairs every few milliseconds only: measured on 2 cores, one all_reduce of 16 MiB in ten took 5 to 10 ms, not 1.7.
// For the time of one call the thread's affinity is changed; afterwards it is what the user made it.
#pragma once
#include <vector>

#include "transport/arena.h"

namespace ringdp::comm {

// The usable cores on which no peer is, when one of them is on `here`; nothing when this thread may stay.
std::vector<int> free_cores(const std::vector<int>& usable, int here, const std::vector<int>& of_peers);

// By a driver that begins to wait. Moves its thread when a member of the arena was last seen on its core, and shows where
// it is then: the other, which goes on meanwhile, must not move as well.
void step_aside(transport::Arena& arena);

}  // namespace ringdp::comm
