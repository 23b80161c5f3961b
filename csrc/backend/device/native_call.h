// One collective that devices run themselves, over windows that all ranks of the host map.
//
//   the lane's stream       copy to window > plan > wait for the host's word > copy to tensor > poison?
//
// Tensors in a segment (gpu/segments.h) are where the plan runs:
//
//   the lane's stream       wait for the host's word > plan > poison?
//
// The plan comes last there, and looks whether the group is over: peers that have called something else would write into
// tensors that are none of this call. What a peer that goes on still writes is a sum of what all have brought, or of NaN.
#pragma once
#include <vector>

#include "backend/device/native_job.h"
#include "backend/device/native_question.h"

namespace ringdp::backend {

class NativeCall final : public NativeJob {
 public:
  // Contiguous memory on the device.
  struct Tensors {
    std::vector<at::Tensor> inputs, outputs;  // the parts of gpu/pieces.h; none where this rank brings or gets none
    std::vector<at::Tensor> written;          // by what comes after
    struct Copy {
      at::Tensor memory, tensor;
    };
    std::vector<Copy> results;  // outputs and where their elements belong
  };
  NativeCall(std::shared_ptr<NativeLane> lane, const NativeQuestion& question, Tensors tensors);

 private:
  void queue() override;
  gpu::Pieces cut() const;
  void run(const Extent& elements, bool first);
  void run_in_segment(const Extent& elements, bool first);
  gpu::DeviceRanks::Piece piece_of(const Extent& elements) const;
  void record_tensors() const;

  const NativeQuestion question_;
  const Tensors tensors_;
  const gpu::Pieces pieces_;
  const plan::DeviceChoice choice_;
  const bool can_be_nan_;
};

}  // namespace ringdp::backend
