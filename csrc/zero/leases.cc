#include "zero/leases.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <atomic>

namespace ringdp::zero {
namespace {

std::atomic_ref<int64_t> word_of(const at::Tensor& words, int64_t word) {
  TORCH_CHECK(words.scalar_type() == at::kLong && words.is_contiguous() && word >= 0 && word < words.numel(),
              "there is no word ", word, " in a tensor of ", words.numel(), " ", words.scalar_type());
  return std::atomic_ref<int64_t>(words.mutable_data_ptr<int64_t>()[word]);
}

}  // namespace

at::Tensor lent(const at::Tensor& memory, const at::Tensor& words, int64_t word, int64_t use) {
  static_cast<void>(word_of(words, word));
  const auto give_back = [memory, words, word, use, owner = ::getpid()](void*) {
    if (::getpid() == owner) word_of(words, word).store(use, std::memory_order_release);
  };
  return at::from_blob(memory.mutable_data_ptr(), memory.sizes(), memory.strides(), give_back, memory.options());
}

bool is_returned(const at::Tensor& words, int64_t first, int64_t count, int64_t use) {
  for (int64_t word = first; word < first + count; ++word) {
    if (word_of(words, word).load(std::memory_order_acquire) != use) return false;
  }
  return true;
}

}  // namespace ringdp::zero
