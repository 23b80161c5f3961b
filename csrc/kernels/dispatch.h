// Which instruction sets this binary holds and this machine runs.
#pragma once
#include <vector>

#include "kernels/checksum.h"
#include "kernels/codec_kernel.h"
#include "kernels/copy.h"
#include "kernels/kernel.h"
#include "kernels/step_kernel.h"

namespace ringdp::kernels {

struct InstructionSet {
  const char* name;  // "avx512", "avx2", "neon" or "scalar"
  KernelPicker pick;
  const Codec& codec;
  CopyKernel copy_past_caches;
  const StepKernels& step;
  UnorderedChecksum unordered_checksum;
};

// Best first, never empty; the last one is the compiler's baseline. Found once; thread-safe.
const std::vector<InstructionSet>& supported_instruction_sets();

}  // namespace ringdp::kernels
