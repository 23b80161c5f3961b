// Reduces N buffers element by element in the order given, and rounds once.
//
// dst[i] = finish(((src0[i] op src1[i]) op src2[i]) ...). 16-bit floats are folded in float32 and rounded to
// nearest even once; all other types fold in their own type (integers wrap). MIN and MAX propagate NaN as
// torch.minimum does and keep the earlier of two equal values (-0.0 and 0.0). The same bits come out of every
// instruction set, SIMD body and tail; to that end every NaN that is computed (not merely copied, as one
// source without divisor or change of width is) becomes the positive quiet NaN of the result's type.
// Complex numbers are folded part by part. Bools are logic: SUM, MAX and BOR are "any", PRODUCT, MIN and BAND "all".
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace ringdp::kernels {

struct FoldArgs {
  const void* const* srcs = nullptr;  // n_srcs >= 1 buffers of `count` elements, in the order of the sum
  int n_srcs = 0;
  void* const* dsts = nullptr;  // n_dsts >= 1 buffers; each may be one of srcs (same address), else disjoint
  int n_dsts = 0;
  int64_t count = 0;
  DType dtype = DType::kF32;     // type of the tensors
  ReduceOp op = ReduceOp::kSum;  // AVG folds as SUM; the division is `divisor`
  bool wide_src = false;         // srcs[0] is a partial sum in wide_of(dtype)
  bool wide_dst = false;         // dsts receive the unrounded partial sum in wide_of(dtype)
  double divisor = 0;            // 0: none; else one true division (in wide_of(dtype)) before rounding
};

// Buffers need only the alignment of their element type. A dst may share its address with a src of the same
// element size only. Thread-safe; touches nothing but the buffers. InvalidArgument: a count below 0, no buffer,
// a null buffer, an op without meaning on the dtype (can_reduce), or a divisor for integers; nothing is written then.
void fold(const FoldArgs& args);

// Instruction set that `fold` runs on: "avx512", "avx2", "neon" or "scalar".
const char* instruction_set();

}  // namespace ringdp::kernels
