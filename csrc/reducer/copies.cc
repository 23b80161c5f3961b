#include "reducer/copies.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/copy.h"

namespace ringdp::reducer {
namespace {

constexpr int64_t kLarge = 64 << 10;  // bytes
constexpr int64_t kPart = 256 << 10;  // bytes of one thread

// Whether the elements are plain values in memory, in one block and in the same order.
bool are_alike(const at::Tensor& to, const at::Tensor& from) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
           !tensor._is_zerotensor() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
           tensor.is_non_overlapping_and_dense();
  };
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && is_plain(to) && is_plain(from) &&
         to.strides() == from.strides() && !to.is_alias_of(from);
}

// Returns whether it did.
bool copy_past_caches(const at::Tensor& to, const at::Tensor& from) {
  if (static_cast<int64_t>(from.nbytes()) < kLarge || !are_alike(to, from)) return false;
  auto* const dst = static_cast<char*>(to.mutable_data_ptr());
  const auto* const src = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, static_cast<int64_t>(from.nbytes()), kPart, [&](int64_t begin, int64_t end) {
    kernels::copy_nontemporal(src + begin, dst + begin, end - begin);
  });
  to.unsafeGetTensorImpl()->bump_version();
  return true;
}

}  // namespace

void copy_tensor(const at::Tensor& to, const at::Tensor& from) {
  if (!copy_past_caches(to, from)) to.copy_(from);
}

void copy_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  std::vector<at::Tensor> other_to, other_from;
  for (size_t i = 0; i < to.size(); ++i) {
    if (copy_past_caches(to[i], from[i])) continue;
    other_to.push_back(to[i]);
    other_from.push_back(from[i]);
  }
  if (!other_to.empty()) at::_foreach_copy_(other_to, other_from);
}

}  // namespace ringdp::reducer
