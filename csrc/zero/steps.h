// One step of SGD or Adam over the pieces of parameters that a rank owns, prepared before the gradients are there.
//
// Pieces are contiguous 1-D float32 CPU tensors, each with state of the same length; lists have one entry per piece.
// Bits are those of torch.optim's single-tensor step (kernels/step.h), or with `fastest` those of ringdp's own,
// wherever a piece is cut. RuntimeError names what does not fit before anything is written. One thread at a time steps
// a piece; no other thread touches its tensors meanwhile.
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

  // Elements begin..begin+count of a piece; each once. `gradients`: of these elements.
  virtual void step(size_t piece, int64_t begin, int64_t count, const float* gradients) const = 0;

  // All of these pieces.
  void run(const std::vector<size_t>& numbers, const Pieces& gradients) const;

  const Pieces& parameters() const { return parameters_; }

 protected:
  explicit PieceSteps(Pieces parameters);

 private:
  const Pieces parameters_;
};

using Steps = std::shared_ptr<PieceSteps>;

// `buffers`: empty without momentum. `first[i]`: buffer i has not been written yet.
Steps sgd_steps(Pieces parameters, Pieces buffers, std::vector<bool> first, const kernels::SgdSettings& settings,
                bool fastest);

// `largest`: empty without amsgrad. `numbers[i]`: the number of this step of piece i, from 1.
Steps adam_steps(Pieces parameters, Pieces means, Pieces squares, Pieces largest, std::vector<double> numbers,
                 const kernels::AdamSettings& settings, bool fastest);

}  // namespace ringdp::zero
