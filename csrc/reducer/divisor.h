// By what the sum over ranks is divided in the next reduction: the number of ranks, the number of ranks that still have
// inputs (join), or the sum of everybody's weights. All are equal on all ranks.
//
// A number that has to be agreed on first is asked for before the backward pass and waited for when the first bucket is
// complete, so it travels while gradients are computed. Guarded by the reducer's lock.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ringdp::reducer {

class Divisor {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  explicit Divisor(int ranks) : ranks_(ranks) {}

  // `work`: the all_reduce of one number per rank, whose sum is the divisor of the next reduction.
  void ask(WorkPtr work) {
    reset();
    work_ = std::move(work);
  }
  void set(double divisor) { value_ = divisor; }  // of the next reduction, known already

  // Waits if it must; the same until reset(). RuntimeError when the sum is no number to divide by.
  double get();
  void reset();

 private:
  int ranks_;
  WorkPtr work_;
  double value_ = 0;  // 0: not known yet
};

}  // namespace ringdp::reducer
