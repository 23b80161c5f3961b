// All ranks lay out their buckets as rank 0 does: gradients may arrive in another order on each.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "reducer/layout.h"

namespace ringdp::reducer {

// Collective: rank 0's layout of `parameters` parameters. `device`: one that the group's collectives serve.
Layout agree_on(const Layout& own, size_t parameters, c10d::ProcessGroup& group, const at::Device& device);

}  // namespace ringdp::reducer
