// The cores that a thread may run on, and the one it runs on.
#pragma once
#include <vector>

namespace ringdp {

std::vector<int> usable_cores();  // of this thread, ascending; empty when the system does not say
int current_core();               // -1 when the system does not say

// Moves this thread to one of `cores` at once; afterwards it may run wherever it might before. False when the system
// refuses, or when `cores` are none of this thread's.
bool move_to(const std::vector<int>& cores);

}  // namespace ringdp
