#include "backend/profile.h"

#include <cstring>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

namespace ringdp::backend {
namespace {

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t n = 0;
  for (const at::Tensor& tensor : tensors) n += tensor.numel();
  return n;
}

}  // namespace

void record_param_comms(const char* title, c10d::Backend& backend, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs) {
  if (!at::hasCallbacks()) return;
  const auto sequence = std::make_tuple(static_cast<int64_t>(backend.getSequenceNumberForGroup()), false);
  const auto group = std::make_tuple(backend.getGroupUid(), backend.getGroupDesc());
  auto from = inputs, to = outputs;
  RECORD_PARAM_COMMS_DATA(sequence, group, from, to, backend.getRank(), std::string(std::strchr(title, ':') + 1), elements(inputs), elements(outputs),
                          inputs.empty() ? at::kByte : inputs[0].scalar_type(), std::vector<int64_t>(),
                          std::vector<int64_t>(), -1, -1, backend.getSize());
}

}  // namespace ringdp::backend
