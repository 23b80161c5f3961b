// Lets the calling thread take, map and free memory while another thread captures a graph: such calls would end every
// capture of the process that was begun in CUDA's global mode, which is torch's default.
#pragma once
#include "gpu/cuda/errors.h"

namespace ringdp::gpu {

class BesideCaptures {
 public:
  BesideCaptures() { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the thread's former one, then this again
};

// guarded(), beside captures.
template <class Text>
int guarded_beside_captures(Text text) noexcept {
  const BesideCaptures relaxed;
  return guarded(text);
}

}  // namespace ringdp::gpu
