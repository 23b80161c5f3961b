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
#include "zero/step_journal.h"

namespace ringdp::zero {

using Pieces = std::vector<at::Tensor>;

class PieceSteps {
 public:
  virtual ~PieceSteps() = default;

  // Steps elements begin..begin+count of a piece with their `gradients`. Call once for each element.
  void step(size_t piece, int64_t begin, int64_t count, const float* gradients) const {
    step_arrays(piece, arrays(piece, begin, count, gradients));
  }

  // Steps all elements of these pieces, given by index; one gradient for each. `journal`: null, or what notes each
  // block, where they have these numbers.
  void run(const std::vector<size_t>& pieces, const Pieces& gradients, const StepJournal* journal,
           const std::vector<int64_t>& numbers) const;

  const Pieces& parameters() const { return parameters_; }

 protected:
  explicit PieceSteps(Pieces parameters);
  // Those elements of a piece and of its state; what it does not have is null.
  virtual kernels::StepArrays arrays(size_t piece, int64_t begin, int64_t count, const float* gradients) const = 0;
  virtual void step_arrays(size_t piece, const kernels::StepArrays& arrays) const = 0;

 private:
  void run_noted(size_t piece, const at::Tensor& gradient, const StepJournal& journal, int64_t number) const;

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
