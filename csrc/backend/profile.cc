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

void record_param_comms(const char* title, Kind kind, c10d::Backend& backend, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& outputs) {
  if (!at::hasCallbacks()) return;
  const bool is_message = kind == Kind::kMessage;
  const auto number = static_cast<int64_t>(backend.getSequenceNumberForGroup()) + !is_message;
  const auto sequence = std::make_tuple(number, is_message);
  const auto group = std::make_tuple(backend.getGroupUid(), backend.getGroupDesc());
  const char* const name = std::strchr(title, ':') + 1;
  const auto dtype = inputs.empty() ? at::kByte : inputs[0].scalar_type();
  const std::vector<int64_t> no_splits;
  auto from = inputs, to = outputs;
  RECORD_PARAM_COMMS_DATA(sequence, group, from, to, backend.getRank(), std::string(name), elements(inputs),
                          elements(outputs), dtype, no_splits, no_splits, -1, -1, backend.getSize());
}

}  // namespace ringdp::backend
