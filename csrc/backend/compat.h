// The one place for differences between torch releases (2.11 to 2.15).
#pragma once
#include <c10/core/StorageImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "ringdp needs torch 2.11 or newer (pip install torch==2.13.0)"
#endif

namespace ringdp::backend {

// 2.13 renames the flat collectives of a group and warns about the old names.
// An all_to_all of flat tensors; without lengths their parts are equal.
inline c10::intrusive_ptr<c10d::Work> exchange_parts(c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from,
                                                     std::vector<int64_t> to_lengths = {},
                                                     std::vector<int64_t> from_lengths = {}) {
#if TORCH_VERSION_MINOR >= 13
  return group.all_to_all_single(to, from, to_lengths, from_lengths);
#else
  return group.alltoall_base(to, from, to_lengths, from_lengths);
#endif
}

inline c10::intrusive_ptr<c10d::Work> gather_parts(c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from) {
#if TORCH_VERSION_MINOR >= 13
  return group.all_gather_single(to, from);
#else
  return group._allgather_base(to, from);
#endif
}

inline c10::intrusive_ptr<c10d::Work> scatter_sum(c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from) {
#if TORCH_VERSION_MINOR >= 13
  return group.reduce_scatter_single(to, from);
#else
  return group._reduce_scatter_base(to, from);
#endif
}

// Undoes release_data_and_set_meta_custom_data_ptr_error_msg_(); takes effect with the next data pointer that is set.
#if TORCH_VERSION_MINOR >= 13
inline void allow_access(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#else
// Before 2.13 nothing does. An explicit instantiation may name what is private.
template <bool c10::StorageImpl::*kFlag>
struct AccessFlag {
  friend bool c10::StorageImpl::*access_flag() { return kFlag; }
};
bool c10::StorageImpl::*access_flag();
template struct AccessFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
inline void allow_access(c10::StorageImpl& storage) { storage.*access_flag() = false; }
#endif

}  // namespace ringdp::backend
