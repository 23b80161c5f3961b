// What a call asks of devices that run it themselves.
#pragma once
#include <chrono>

#include "gpu/segments.h"
#include "plan/device_plan.h"

namespace ringdp::backend {

class NativeLane;

struct NativeQuestion {
  plan::DeviceProblem problem;  // its count in elements, any number
  double divisor = 0;           // of a sum; 0: none
  std::chrono::milliseconds timeout;
  bool captured = false;         // into a graph, by the caller's stream
  gpu::SegmentRef segment = {};  // where the tensors lie; in none: they are copied to the window and back
};

}  // namespace ringdp::backend
