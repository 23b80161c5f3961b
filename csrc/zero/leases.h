// Memory that one rank fills and all ranks of its host read, and who still reads it: a block has a word for each rank,
// in memory that they share, with the number of the latest use that this rank has returned.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ringdp::zero {

// `memory`, lent to whoever has the returned tensor or its storage: with the last of them, `words[word]` becomes `use`,
// after all that was read. `words` is a flat int64 tensor. In a forked child nothing is returned. Any thread.
at::Tensor lent(const at::Tensor& memory, const at::Tensor& words, int64_t word, int64_t use);

// Whether each of `count` words from `first` on is `use`: nobody reads the block any more.
bool is_returned(const at::Tensor& words, int64_t first, int64_t count, int64_t use);

}  // namespace ringdp::zero
