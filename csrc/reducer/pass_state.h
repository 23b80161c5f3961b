// The state of one backward pass: which gradients have arrived, which parameters are used, and the divisor. Guarded by
// the reducer's lock.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringdp::reducer {

// Which gradients of the running pass have arrived, and how often a parameter's hook fires in a static graph. Pure
// bookkeeping on indices.
class Readiness {
 public:
  explicit Readiness(size_t parameters) : arrived_(parameters, false), firings_(parameters, 0), left_(parameters, 0) {}

  void begin();             // a backward pass begins
  bool mark(size_t index);  // as arrived; false if it already was
  std::vector<size_t> missing() const;
  std::vector<size_t> order() const;  // gradients of this pass by when each was complete

  // Static graphs: the first pass counts, later ones count down.
  void forget_firings() { std::fill(firings_.begin(), firings_.end(), 0); }
  void count_firing(size_t index) { ++firings_[index]; }
  size_t firings(size_t index) const { return firings_[index]; }
  enum class Firing { kNotYet, kLast, kTooMany };
  Firing count_down(size_t index);

  void note_firing(size_t index) { firing_order_.push_back(index); }

 private:
  std::vector<bool> arrived_;
  std::vector<size_t> firing_order_;
  std::vector<size_t> firings_, left_;
};

// Which parameters were used in a step: on this rank, from its own gradients; on any rank, from one all_reduce.
//
// A parameter that no rank has used keeps its .grad as it is, so an optimizer skips it as it would in one process. Only
// a rank that has not used some parameter waits for the all_reduce.
class Usage {
 public:
  Usage(size_t parameters, const at::Device& device);

  void mark(size_t index) { of_this_rank_[index] = 1; }  // also under no_sync()
  void start(c10d::ProcessGroup& group);                 // collective
  bool anywhere(size_t index);                           // after start(); may block
  void wait();                                           // before the next start()
  void forget();                                         // for the next step

 private:
  std::vector<int32_t> of_this_rank_;
  at::Tensor sum_;  // on the device, where collectives need it
  c10::intrusive_ptr<c10d::Work> work_;
};

// What the sum over ranks is divided by in the next reduction: the number of ranks, the number of ranks that still have
// inputs (join), or the sum of all ranks' weights; equal on all ranks.
//
// A divisor that is a sum over ranks is all-reduced while gradients are computed; the first complete bucket waits for
// it.
class Divisor {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  explicit Divisor(int ranks) : ranks_(ranks) {}

  // `work`: the all_reduce of one number per rank, whose sum is the divisor of the next reduction.
  void set_work(WorkPtr work) {
    reset();
    work_ = std::move(work);
  }
  void set(double divisor) { value_ = divisor; }  // of the next reduction

  // Waits for the sum if there is one; the same value until reset(). RuntimeError if it is not finite and positive.
  double get();
  void reset();

 private:
  int ranks_;
  WorkPtr work_;
  double value_ = 0;  // 0: not known yet
};

}  // namespace ringdp::reducer
