// How torch computes on this machine: what a step needs to have its bits (kernels/step.h).
#pragma once
#include "kernels/step.h"

namespace ringdp::zero {

// torch's square root of contiguous float32 CPU tensors (MKL's vmsSqrt where libtorch_cpu has it, else at::sqrt), and
// whether the instruction set that torch has chosen fuses multiply-add. Found once; thread-safe.
const kernels::StepMath& torch_math();

// The fastest here: IEEE roots in one pass; multiply-add as torch_math() has it.
kernels::StepMath fastest_math();

}  // namespace ringdp::zero
