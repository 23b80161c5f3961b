// Contract between `sgd_step`/`adam_step` (scalars, blocks, tails) and the step kernels (one instruction set each).
//
// A kernel works on a multiple of kStepLanes elements and keeps no pointer.
#pragma once
#include "kernels/step.h"

namespace ringdp::kernels {

constexpr int64_t kStepLanes = 16;  // a whole number of vectors of every instruction set

struct SgdScalars {
  float minus_lr, momentum, share, weight_decay;  // share: 1 - dampening
  bool decays, has_momentum, first, nesterov, maximize;
};

struct AdamScalars {
  float keep, weight_decay;              // of decoupled and of coupled decay
  float mean_weight, beta2, square_weight;  // 1 - beta1, beta2, 1 - beta2
  float root_correction, eps, rate;      // root(1 - beta2^t), eps, -lr / (1 - beta1^t)
  bool decays_gradient, amsgrad, maximize;
};

// Of step `number`, from 1; for the CPU's kernels and the device's.
AdamScalars scalars_of(const AdamSettings& settings, double number);

struct StepKernels {
  bool fma;
  void (*sgd)(const SgdScalars&, const StepArrays&);
  void (*moments)(const AdamScalars&, const StepArrays&);                    // Adam up to the root
  void (*update)(const AdamScalars&, const StepArrays&, const float* roots);  // and from the root on
  void (*adam)(const AdamScalars&, const StepArrays&);                       // both, with IEEE roots
};

const StepKernels& scalar_step_kernels();
const StepKernels& scalar_fma_step_kernels();  // where the baseline has the instruction (aarch64); elsewhere slow
const StepKernels& avx2_step_kernels();
const StepKernels& avx512_step_kernels();

// The steps on chosen kernels: what the tests of one instruction set call. `root` as in StepMath.
void sgd_step_with(const StepKernels& kernels, const SgdSettings& settings, const StepArrays& arrays, bool first);
void adam_step_with(const StepKernels& kernels, const AdamSettings& settings, const StepArrays& arrays, double number,
                    void (*root)(const float*, float*, int64_t));

}  // namespace ringdp::kernels
