// The steps once more, plainly: one element at a time, one rounding per line, as torch's operators run.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/step.h"

namespace ringdp::kernels::testing {

struct Trained {
  std::vector<float> parameters, first, second, largest;  // first: momentum or mean
};

class StepReference {
 public:
  StepReference(bool fma, void (*root)(const float*, float*, int64_t)) : fma_(fma), root_(root) {}

  void sgd(const SgdSettings& s, const std::vector<float>& gradients, bool first, Trained& t) const {
    for (size_t i = 0; i < gradients.size(); ++i) {
      float g = s.maximize ? -gradients[i] : gradients[i];
      if (s.weight_decay != 0) g = add(g, t.parameters[i], s.weight_decay);
      if (s.momentum != 0) {
        const float kept = t.first[i] * static_cast<float>(s.momentum);
        t.first[i] = first ? g : add(kept, g, 1 - s.dampening);
        g = s.nesterov ? add(g, t.first[i], s.momentum) : t.first[i];
      }
      t.parameters[i] = add(t.parameters[i], g, -s.lr);
    }
  }

  void adam(const AdamSettings& s, const std::vector<float>& gradients, double number, Trained& t) const {
    const double step_size = s.lr / (1 - std::pow(s.beta1, number));
    const auto correction = static_cast<float>(std::pow(1 - std::pow(s.beta2, number), 0.5));
    const auto square_weight = static_cast<float>(1 - s.beta2);
    for (size_t i = 0; i < gradients.size(); ++i) {
      float& p = t.parameters[i];
      float g = s.maximize ? -gradients[i] : gradients[i];
      if (s.weight_decay != 0 && s.decoupled) p *= static_cast<float>(1 - s.lr * s.weight_decay);
      if (s.weight_decay != 0 && !s.decoupled) g = add(g, p, s.weight_decay);
      t.first[i] = lerp(t.first[i], g, static_cast<float>(1 - s.beta1));
      const float kept = t.second[i] * static_cast<float>(s.beta2), scaled = square_weight * g;
      t.second[i] = add(kept, g, scaled);
      float square = t.second[i];
      if (s.amsgrad) square = t.largest[i] = larger(t.largest[i], square);
      float rooted = 0;
      if (root_) {
        root_(&square, &rooted, 1);
      } else {
        rooted = std::sqrt(square);
      }
      const float divided = rooted / correction;
      const float denominator = divided + static_cast<float>(s.eps);
      const float scaled_mean = static_cast<float>(-step_size) * t.first[i];
      const float quotient = scaled_mean / denominator;
      p = p + quotient;
    }
  }

 private:
  // a + b * scale
  float add(float a, float b, double scale) const {
    const auto factor = static_cast<float>(scale);
    const float product = b * factor;
    return fma_ ? std::fma(b, factor, a) : a + product;
  }
  float lerp(float from, float to, float weight) const {
    return weight < 0.5f ? add(from, to - from, weight) : add(to, to - from, weight - 1);
  }
  static float larger(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }

  const bool fma_;
  void (*const root_)(const float*, float*, int64_t);
};

}  // namespace ringdp::kernels::testing
