// torch.profiler's record_param_comms event: which collective, on which group, how many elements.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ringdp::backend {

// Cheap when no profiler is on. `title` is "ringdp:all_reduce"; the event carries the part after the colon.
// Before the call is submitted: a collective's event has the number it is about to get, a message's that of the last
// collective before it.
enum class Kind { kCollective, kMessage };
void record_param_comms(const char* title, Kind kind, c10d::Backend& backend, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs);

}  // namespace ringdp::backend
