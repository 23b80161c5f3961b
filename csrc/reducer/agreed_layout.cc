#include "reducer/agreed_layout.h"

#include <ATen/ATen.h>

namespace ringdp::reducer {

// One broadcast of parameters x 2 numbers: every index in launch order, and the bucket it is in.
Layout agree_on(const Layout& own, size_t parameters, c10d::ProcessGroup& group, const at::Device& device) {
  std::vector<int64_t> numbers;
  for (size_t bucket = 0; bucket < own.size(); ++bucket) {
    for (const size_t index : own[bucket]) {
      numbers.push_back(static_cast<int64_t>(index));
      numbers.push_back(static_cast<int64_t>(bucket));
    }
  }
  TORCH_CHECK(numbers.size() == 2 * parameters, "a layout of ", numbers.size() / 2, " of ", parameters, " parameters");
  std::vector<at::Tensor> tensors{at::tensor(numbers, at::kLong).to(device)};
  group.broadcast(tensors)->wait();
  const at::Tensor agreed = tensors[0].cpu();
  const int64_t* const pairs = agreed.const_data_ptr<int64_t>();
  Layout layout;
  for (size_t i = 0; i < parameters; ++i) {
    const auto bucket = static_cast<size_t>(pairs[2 * i + 1]);
    if (bucket >= layout.size()) layout.resize(bucket + 1);
    layout[bucket].push_back(static_cast<size_t>(pairs[2 * i]));
  }
  return layout;
}

}  // namespace ringdp::reducer
