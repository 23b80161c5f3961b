// torch.profiler's record_param_comms event: which collective, on which group, how many elements.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ringdp::backend {

// Cheap when no profiler is on. `title` is "ringdp:all_reduce"; the event carries the part after the colon.
// `sequence`: of the collective that is about to begin; of a message, that of the last collective before it.
struct CommsEvent {
  const char* title;
  uint64_t sequence;
  bool is_message;
};
void record_param_comms(const CommsEvent& event, c10d::Backend& backend, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs);

}  // namespace ringdp::backend
