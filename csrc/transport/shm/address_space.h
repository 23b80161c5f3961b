// How much address space and file size this process may reserve for the heaps of a group. A look only: nothing stays.
#pragma once
#include <cstdint>

namespace ringdp::transport {

// The heap of each of `ranks` that leaves most of the address space free: `wanted` bytes, halved until all heaps would
// fit several times; 0 when only a few MiB would be left of it. Whole pages.
int64_t reservable_heap(int64_t wanted, int ranks);

}  // namespace ringdp::transport
