// What connects the devices of a host: it decides at which sizes one plan takes over from another
// (device/plan/select.h).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "device/plan/select.h"
#include "device/runtime/library.h"

namespace ringdp::gpu {

// Smaller copies take their time for something else.
constexpr int64_t kLeastProbed = 8 << 20, kMostProbed = 16 << 20;  // bytes

struct LinkSpeed {
  double bytes_per_second = 0;  // 0: copies fail
  int32_t late = 0;             // 1: one does not end
};

double seconds_now();  // of a steady clock

// Of copies from a peer's memory to this device's: the fastest of a few, some milliseconds in all, without the time
// that a copy of nearly nothing takes. `now`: in seconds.
LinkSpeed speed_of_copies(const Functions& functions, int device, void* to, const void* from, int64_t bytes,
                          const std::function<double()>& now = seconds_now);

// Kinds of links, rather than what was measured: thresholds do not depend on chance.
struct Links {
  std::string description;  // "links like PCIe (22 GB/s)", or "" when nothing was measured
  double bytes_per_second = plan::DeviceTopology{}.bytes_per_second;
  double barrier_seconds = plan::DeviceTopology{}.barrier_seconds;
};

// By the speed of the slowest copies of a group; 0: not measured, taken for NVLink.
Links links_of(double slowest);

}  // namespace ringdp::gpu
