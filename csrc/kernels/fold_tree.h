// Adds up buffers element by element along a tree of additions, and rounds once.
//
// The program says in postfix what is added to what: a number pushes the source of that index, a negative word replaces
// the two sums on top of the stack by their sum. The arithmetic is fold's (fold.h): 16-bit floats are added in float32
// and rounded to nearest even once, a NaN that is computed is the positive quiet one, and the same bits come out of
// every instruction set. Perfect subtrees of 2, 4, 8 and 16 sums are added up in registers, and what is between them in
// blocks that stay in the cache.
#pragma once
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace ringdp::kernels {

struct TreeSource {
  const void* data = nullptr;  // `count` elements
  bool wide = false;           // a partial sum in wide_of(dtype)
};

struct TreeArgs {
  std::span<const TreeSource> srcs;
  std::span<const int> program;
  std::span<void* const> dsts;  // at least one; each may be a source of the same element size, else disjoint from all
  int64_t count = 0;
  DType dtype = DType::kF32;  // floats or complex numbers
  bool wide_dst = false;      // dsts receive the unrounded sum in wide_of(dtype)
  double divisor = 0;         // 0: none; else one true division (in wide_of(dtype)) before rounding
};

// Thread-safe; touches nothing but the buffers. InvalidArgument, and nothing is written: a count below 0, a null
// buffer, another dtype, a program that uses a source that is not there or does not end with one sum.
void fold_tree(const TreeArgs& args);

}  // namespace ringdp::kernels
