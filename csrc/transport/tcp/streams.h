// How many TCP connections carry the collectives of a pair of ranks.
//
// One connection is handled by one core on each side and holds one congestion window: enough up to 10 Gb/s, not for
// faster interfaces. Below that, more connections only share what one would get.
#pragma once
#include <cstdint>
#include <string>

namespace ringdp::transport {

// Megabits per second, as the driver says; 0 when it says nothing (loopback, most virtual interfaces).
int64_t interface_speed(const std::string& name);

// 1; 4 from 25 Gb/s on; 8 from 100 Gb/s on.
int streams_for(int64_t megabits);

}  // namespace ringdp::transport
