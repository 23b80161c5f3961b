// The one place for differences between torch releases (2.11 to 2.15).
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "ringdp needs torch 2.11 or newer (pip install torch==2.13.0)"
#endif

namespace ringdp::backend {

// 2.13 renames the flat collectives of a group and warns about the old names.
inline c10::intrusive_ptr<c10d::Work> exchange_parts(c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from) {
  std::vector<int64_t> equal_parts;
#if TORCH_VERSION_MINOR >= 13
  return group.all_to_all_single(to, from, equal_parts, equal_parts);
#else
  return group.alltoall_base(to, from, equal_parts, equal_parts);
#endif
}

inline c10::intrusive_ptr<c10d::Work> gather_parts(c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from) {
#if TORCH_VERSION_MINOR >= 13
  return group.all_gather_single(to, from);
#else
  return group._allgather_base(to, from);
#endif
}

}  // namespace ringdp::backend
