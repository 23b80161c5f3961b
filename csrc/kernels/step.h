// One step of SGD, Adam or AdamW on flat float32 arrays, with the bits of torch.optim's single-tensor step on the CPU.
//
// torch runs a step as a sequence of element-wise operators, each of which rounds; these are their roundings
// (torch 2.13, torch/optim/sgd.py and adam.py, aten/src/ATen/native/cpu), [x] being a value rounded to float32:
//   lerp      m = fma(w, [g - m], m) for w = 1 - beta1 below 0.5, else fma([w - 1], [g - m], g)
//   addcmul   v = fma([(1 - beta2) * g], g, [v * beta2])
//   addcdiv   p = [[p * (1 - lr * decay)] + [[-lr / (1 - beta1^t) * m] / [[root(v) / root(1 - beta2^t)] + eps]]]
//   add       b = fma(g, 1 - dampening, [b * momentum]);  p = fma(b, -lr, p)
// Two things are torch's own and given by the caller: its square root, which is not the IEEE one everywhere (MKL's
// differs in the last place for a fifth of all numbers), and whether a fused multiply-add is used. Scalars are computed
// in double and rounded to float32 where an operator takes them. The bits do not depend on where an array is cut.
// Arrays of one call do not overlap and need the alignment of float only. Thread-safe; nothing is kept.
#pragma once
#include <cstdint>

namespace ringdp::kernels {

struct StepMath {
  void (*root)(const float* values, float* roots, int64_t count) = nullptr;  // null: IEEE, in one pass over all arrays
  bool fma = true;
};

struct StepArrays {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  // SGD: momentum buffer. Adam: mean of the gradients, of their squares, and with amsgrad the largest of the latter.
  float* state[3] = {};
  int64_t count = 0;
};

struct SgdSettings {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};

struct AdamSettings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool decoupled = false;  // AdamW: parameters shrink, gradients stay as they are
  bool amsgrad = false, maximize = false;
};

// The settings in float32, as the kernels for the CPU and for devices use them.
struct SgdScalars {
  float minus_lr, momentum, share, weight_decay;  // share: 1 - dampening
  bool decays, has_momentum, first, nesterov, maximize;
};

struct AdamScalars {
  float keep, weight_decay;                 // of decoupled and of coupled decay
  float mean_weight, beta2, square_weight;  // 1 - beta1, beta2, 1 - beta2
  float root_correction, eps, rate;         // root(1 - beta2^t), eps, -lr / (1 - beta1^t)
  bool decays_gradient, amsgrad, maximize;
};

// `number`: of the step, from 1.
AdamScalars scalars_of(const AdamSettings& settings, double number);

// `first`: there is no momentum yet; the buffer is written without being read. InvalidArgument: a missing array, or no
// kernel with this `math`; nothing is written then.
void sgd_step(const SgdSettings& settings, const StepArrays& arrays, bool first, const StepMath& math);

// `number`: of this step, from 1. Errors as above.
void adam_step(const AdamSettings& settings, const StepArrays& arrays, double number, const StepMath& math);

}  // namespace ringdp::kernels
