// One step of SGD or Adam over the pieces that a rank owns. A piece is the part of one parameter in the rank's shard.
// Settings and state are given first, gradients later, as they arrive.
//
// Pieces are contiguous 1-D float32 CPU tensors, with state of the same length; lists have one entry per piece. The
// bits are those of torch.optim's single-tensor step (kernels/step.h), or with `fastest` those of ringdp's fastest
// step; they do not depend on where parameters are cut into pieces. Tensors of another kind or length are a
// RuntimeError before anything is written. While one thread steps a piece, no other may use its tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "kernels/step.h"

namespace ringdp::zero {

using Pieces = std::vector<at::Tensor>;

class PieceSteps {
 public:
  virtual ~PieceSteps() = default;

  // Steps elements begin..begin+count of a piece with their `gradients`. Call once for each element.
  virtual void step(size_t piece, int64_t begin, int64_t count, const float* gradients) const = 0;

  // Steps all elements of these pieces, given by index; one gradient for each.
  void run(const std::vector<size_t>& pieces, const Pieces& gradients) const;

  const Pieces& parameters() const { return parameters_; }

 protected:
  explicit PieceSteps(Pieces parameters);

 private:
  const Pieces parameters_;
};

using Steps = std::shared_ptr<PieceSteps>;

// `buffers`: of the momentum; empty without it. `first[i]`: this is the first step of piece i, which sets its buffer.
Steps sgd_steps(Pieces parameters, Pieces buffers, std::vector<bool> first, const kernels::SgdSettings& settings,
                bool fastest);

// `max_exp_avg_sq`: empty without amsgrad. `step_numbers[i]`: 1 in the first step of piece i.
Steps adam_steps(Pieces parameters, Pieces exp_avg, Pieces exp_avg_sq, Pieces max_exp_avg_sq,
                 std::vector<double> step_numbers, const kernels::AdamSettings& settings, bool fastest);

}  // namespace ringdp::zero
