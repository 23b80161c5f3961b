// Streams that ringdp has made, lent to one group at a time.
//
// torch's pool has 32 streams and gives them to everybody again and again: what waits on one of them for other ranks
// would hold up work of the program, or of another group. Nor is a stream destroyed, whose number torch's allocator may
// have kept: one that is given back is lent again.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "device/torch/device_core.h"

namespace ringdp::backend {

class StreamLease {
 public:
  // Error(kInternal) when the device makes no more.
  StreamLease(c10::Device device, DeviceCore& core);
  ~StreamLease();  // a stream with work in flight, or that is being captured, is not lent again
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  const c10::Stream& stream() const { return stream_; }

 private:
  bool is_idle() const noexcept;

  DeviceCore& core_;
  const c10::Stream stream_;
};

}  // namespace ringdp::backend
