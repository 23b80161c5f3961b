// What the host does about a STREAM launch whose waits do not end: says whom it waits for, and releases it.
//
// Such waits are operations of a stream, which nothing on the device can interrupt. Their flags lie in host memory that
// all ranks map, so a watchdog of any rank can end them. Thread-safe against launches.
#pragma once
#include <optional>

#include "gpu/device/work.h"

namespace ringdp::gpu {

// The first wait of the launch that has not come, `flags` being this rank's at their host address.
std::optional<Expired> waited_for(const Work& work, const Flags& flags);

// Ends every wait for one of these flags, now and in all later launches: the group is over.
void release_waits(Flags& flags);

}  // namespace ringdp::gpu
