// Plans that only move know no element types: one kernel serves them all.
#pragma once
#include "base/dtype.h"
#include "gpu/device/work.h"

namespace ringdp::gpu {

// Whether no step adds.
bool only_moves(const Work& work);

// The same bytes as float32. Precondition: only_moves(work), and check_work(work, element) has passed.
void count_as_float32(Work& work, DType element);

}  // namespace ringdp::gpu
