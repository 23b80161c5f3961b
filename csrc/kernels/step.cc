#include "kernels/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr int64_t kBlock = 256;  // elements per call of torch's root: all of a block stays in the first-level cache
constexpr int kStates = 3;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "optimizer step: " + what);
}

void check(const StepArrays& a, int states) {
  if (a.count < 0) refuse("a count of " + std::to_string(a.count) + " elements; it must be 0 or more");
  bool missing = a.parameters == nullptr || a.gradients == nullptr;
  for (int k = 0; k < states; ++k) missing |= a.state[k] == nullptr;
  if (!missing || a.count == 0) return;
  refuse("an array is missing; give parameters, gradients and " + std::to_string(states) + " of state");
}

StepArrays part_of(const StepArrays& all, int64_t begin, int64_t count) {
  StepArrays part{all.parameters + begin, all.gradients + begin, {}, count};
  for (int k = 0; k < kStates; ++k) part.state[k] = all.state[k] ? all.state[k] + begin : nullptr;
  return part;
}

// The last few elements in memory of their own, with zeros up to whole vectors.
class Tail {
 public:
  explicit Tail(const StepArrays& rest) : rest_(rest), padded_{places_[0], places_[1], {}, kStepLanes} {
    copy(rest.parameters, places_[0]);
    copy(rest.gradients, places_[1]);
    for (int k = 0; k < kStates; ++k) {
      if (!rest.state[k]) continue;
      copy(rest.state[k], places_[2 + k]);
      padded_.state[k] = places_[2 + k];
    }
  }
  const StepArrays& padded() const { return padded_; }
  void write_back() {
    copy(places_[0], rest_.parameters);
    for (int k = 0; k < kStates; ++k) {
      if (rest_.state[k]) copy(places_[2 + k], rest_.state[k]);
    }
  }

 private:
  void copy(const float* from, float* to) const { std::memcpy(to, from, rest_.count * sizeof(float)); }

  alignas(64) float places_[2 + kStates][kStepLanes] = {};
  const StepArrays rest_;
  StepArrays padded_;
};

// Calls run(arrays) for every block, each a whole number of vectors.
template <class Run>
void in_blocks(const StepArrays& all, int64_t block, Run run) {
  const int64_t whole = all.count / kStepLanes * kStepLanes;
  for (int64_t begin = 0; begin < whole; begin += block) run(part_of(all, begin, std::min(block, whole - begin)));
  if (whole == all.count) return;
  Tail tail(part_of(all, whole, all.count - whole));
  run(tail.padded());
  tail.write_back();
}

SgdScalars scalars_of(const SgdSettings& s, bool first) {
  return {static_cast<float>(-s.lr),
          static_cast<float>(s.momentum),
          static_cast<float>(1 - s.dampening),
          static_cast<float>(s.weight_decay),
          s.weight_decay != 0,
          s.momentum != 0,
          first,
          s.nesterov,
          s.maximize};
}

const StepKernels& kernels_for(const StepMath& math) {
  for (const InstructionSet& set : supported_instruction_sets()) {
    if (set.step.fma == math.fma) return set.step;
  }
  refuse(std::string("this machine has no kernel ") + (math.fma ? "with" : "without") + " fused multiply-add");
}

}  // namespace

// pow, where sqrt would do, because Python's `** 0.5` is pow.
AdamScalars scalars_of(const AdamSettings& s, double number) {
  const double correction1 = 1 - std::pow(s.beta1, number), correction2 = 1 - std::pow(s.beta2, number);
  const bool decays = s.weight_decay != 0;
  return {static_cast<float>(decays && s.decoupled ? 1 - s.lr * s.weight_decay : 1.0),
          static_cast<float>(s.weight_decay),
          static_cast<float>(1 - s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(1 - s.beta2),
          static_cast<float>(std::pow(correction2, 0.5)),
          static_cast<float>(s.eps),
          static_cast<float>(-(s.lr / correction1)),
          decays && !s.decoupled,
          s.amsgrad,
          s.maximize};
}

void sgd_step_with(const StepKernels& kernels, const SgdSettings& settings, const StepArrays& arrays, bool first) {
  check(arrays, settings.momentum != 0 ? 1 : 0);
  const SgdScalars scalars = scalars_of(settings, first);
  in_blocks(arrays, std::max(arrays.count, kStepLanes), [&](const StepArrays& part) { kernels.sgd(scalars, part); });
}

void adam_step_with(const StepKernels& kernels, const AdamSettings& settings, const StepArrays& arrays, double number,
                    void (*root)(const float*, float*, int64_t)) {
  check(arrays, settings.amsgrad ? 3 : 2);
  const AdamScalars scalars = scalars_of(settings, number);
  if (root == nullptr) {
    in_blocks(arrays, std::max(arrays.count, kStepLanes), [&](const StepArrays& part) { kernels.adam(scalars, part); });
    return;
  }
  in_blocks(arrays, kBlock, [&](const StepArrays& part) {
    alignas(64) float roots[kBlock];
    kernels.moments(scalars, part);
    root(part.state[settings.amsgrad ? 2 : 1], roots, part.count);
    kernels.update(scalars, part, roots);
  });
}

void sgd_step(const SgdSettings& settings, const StepArrays& arrays, bool first, const StepMath& math) {
  sgd_step_with(kernels_for(math), settings, arrays, first);
}

void adam_step(const AdamSettings& settings, const StepArrays& arrays, double number, const StepMath& math) {
  adam_step_with(kernels_for(math), settings, arrays, number, math.root);
}

}  // namespace ringdp::kernels
