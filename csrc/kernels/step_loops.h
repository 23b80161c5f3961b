// The source of all step kernels; kernels_<instruction set>.cc compiles it with its own Isa.
//
// An Isa (vectors.h) here also has fma(a, b, c), a * b + c as torch rounds it, and root(v), the IEEE square root.
#pragma once
#include "kernels/dispatch.h"
#include "kernels/vectors.h"

namespace ringdp::kernels {

template <class Isa>
struct StepLoops {
  using Values = typename Floats<Isa>::Values;
  static constexpr int64_t kLanes = Floats<Isa>::kLanes;
  static_assert(kStepLanes % kLanes == 0);

  static Values load(const float* from) { return Memory<Isa, Values>::load(reinterpret_cast<const char*>(from)); }
  static void store(float* to, Values values) { Memory<Isa, Values>::store(reinterpret_cast<char*>(to), values); }
  static Values all(float value) { return value - Values{}; }  // keeps the sign of a zero, as 0 + value does not

  static Values gradient(const StepArrays& a, int64_t i, Values parameters, bool maximize, bool decays, float decay) {
    Values g = load(a.gradients + i);
    if (maximize) g = -g;
    if (decays) g = Isa::fma(parameters, all(decay), g);
    return g;
  }

  static void sgd(const SgdScalars& s, const StepArrays& a) {
    for (int64_t i = 0; i < a.count; i += kLanes) {
      const Values p = load(a.parameters + i);
      Values g = gradient(a, i, p, s.maximize, s.decays, s.weight_decay);
      if (s.has_momentum) {
        const Values buffer = s.first ? g : Isa::fma(g, all(s.share), load(a.state[0] + i) * s.momentum);
        store(a.state[0] + i, buffer);
        g = s.nesterov ? Isa::fma(buffer, all(s.momentum), g) : buffer;
      }
      store(a.parameters + i, Isa::fma(g, all(s.minus_lr), p));
    }
  }

  // As torch.maximum: NaN on either side wins.
  static Values larger(Values a, Values b) { return ((a > b) | (a != a)) ? a : b; }

  static Values lerp(Values from, Values to, float weight) {
    const Values distance = to - from;
    return weight < 0.5f ? Isa::fma(all(weight), distance, from) : Isa::fma(all(weight - 1), distance, to);
  }

  // The new mean, written; and what the root is taken of, written.
  struct Moments {
    Values mean, square;
  };
  static Moments moments_at(const AdamScalars& s, const StepArrays& a, int64_t i, Values p) {
    const Values g = gradient(a, i, p, s.maximize, s.decays_gradient, s.weight_decay);
    const Values mean = lerp(load(a.state[0] + i), g, s.mean_weight);
    store(a.state[0] + i, mean);
    Values square = Isa::fma(g * s.square_weight, g, load(a.state[1] + i) * s.beta2);
    store(a.state[1] + i, square);
    if (s.amsgrad) {
      square = larger(load(a.state[2] + i), square);
      store(a.state[2] + i, square);
    }
    return {mean, square};
  }
  static void update_at(const AdamScalars& s, float* place, Values p, Values mean, Values root) {
    const Values denominator = root / s.root_correction + s.eps;
    store(place, p * s.keep + mean * s.rate / denominator);
  }

  static void moments(const AdamScalars& s, const StepArrays& a) {
    for (int64_t i = 0; i < a.count; i += kLanes) moments_at(s, a, i, load(a.parameters + i));
  }
  static void update(const AdamScalars& s, const StepArrays& a, const float* roots) {
    for (int64_t i = 0; i < a.count; i += kLanes) {
      update_at(s, a.parameters + i, load(a.parameters + i), load(a.state[0] + i), load(roots + i));
    }
  }
  static void adam(const AdamScalars& s, const StepArrays& a) {
#pragma GCC unroll 2  // one's root and divisions overlap with the other's loads
    for (int64_t i = 0; i < a.count; i += kLanes) {
      const Values p = load(a.parameters + i);
      const Moments now = moments_at(s, a, i, p);
      update_at(s, a.parameters + i, p, now.mean, Isa::root(now.square));
    }
  }

  static constexpr StepKernels kernels(bool fma) { return {fma, sgd, moments, update, adam}; }
};

}  // namespace ringdp::kernels
