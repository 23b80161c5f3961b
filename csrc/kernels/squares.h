// Sums of squares of fixed blocks of an array, in double, for norms that do not depend on how the array is partitioned.
//
// Block k holds the elements from k * kSquareBlock on. Within a block element i goes to sum i % 16, in order; the 16
// sums are then added in order. So a block's sum has the same bits wherever it is computed, on every instruction set.
// Squares of float32 and narrower elements are exact in double.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace ringdp::kernels {

constexpr int64_t kSquareBlock = 1024;  // elements

constexpr int64_t square_blocks(int64_t count) { return (count + kSquareBlock - 1) / kSquareBlock; }

// Writes square_blocks(count) sums. `values` needs the alignment of its elements only. Thread-safe. InvalidArgument: a
// dtype that is not a real float, a count below 0; nothing is written then.
void block_squares(DType dtype, const void* values, int64_t count, double* sums);

}  // namespace ringdp::kernels
