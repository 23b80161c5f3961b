// The fused step of a bucket: gradients of all ranks summed, this rank's part stepped, and given to everybody.
//
//   the lane's stream       gradients to window > barrier > wait for the host's word > step > barrier
//                           > others' parts from window to the parameters > poison
//
// Nothing is stepped before all ranks have called the same. After a failure parameters are NaN, and each element of the
// state is as it was or stepped. The own part is stepped where it lies; in others' windows it replaces gradients.
#pragma once
#include "backend/device/native_job.h"
#include "backend/shard_step.h"
#include "gpu/neighbourhood.h"

namespace ringdp::backend {

class NativeStep final : public NativeJob {
 public:
  // `gradients`: of the whole bucket; check(step, gradients, world) has passed. `divisor`: of their sums.
  NativeStep(std::shared_ptr<NativeLane> lane, at::Tensor gradients, double divisor, ShardStep step, int rank,
             int world, std::chrono::milliseconds timeout);

 private:
  void queue() override;
  void run(const Extent& elements, bool first);
  void bring(const Extent& elements) const;
  void step(const ShardStep::Piece& piece, const Extent& elements) const;
  void fetch(const Extent& elements) const;
  bool gives() const { return step_.parameters.numel() == gradients_.numel(); }
  gpu::Neighbourhood& neighbourhood() const { return *ranks().sharing(); }
  int64_t window_at(int rank, const Extent& elements) const;

  const at::Tensor gradients_;
  const double divisor_;
  const ShardStep step_;
  const int rank_, world_;
  const int64_t part_;  // elements
  const gpu::Pieces pieces_;
};

}  // namespace ringdp::backend
