// Which parameters took part in a step: on this rank by its own gradients, on any rank by one all_reduce of the maps.
//
// A parameter that no rank has used keeps its .grad as it is, so an optimizer skips it as it would in one process. The
// all_reduce is waited for only when this rank has not used a parameter. Guarded by the reducer's lock.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace ringdp::reducer {

class Usage {
 public:
  Usage(size_t parameters, const at::Device& device);

  void mark(size_t index) { of_this_rank_[index] = 1; }  // also in steps that are not synchronised yet
  void start(c10d::ProcessGroup& group);                 // collective
  bool anywhere(size_t index);                           // after start(); may block
  void wait();                                           // before the next start()
  void forget();                                         // for the next step

 private:
  std::vector<int32_t> of_this_rank_;
  at::Tensor sum_;  // on the device, as collectives want it
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ringdp::reducer
