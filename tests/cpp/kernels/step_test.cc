// Optimizer steps on every instruction set against a reference; the choice of kernels, and what is refused.
#include "kernels/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "instruction_sets.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels::testing {

// The steps once more, plainly: one element at a time, one rounding per line, as torch's operators run.
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

// A root that nobody takes for the IEEE one.
inline void odd_root(const float* values, float* roots, int64_t count) {
  for (int64_t i = 0; i < count; ++i) roots[i] = std::nextafter(std::sqrt(values[i]), INFINITY);
}

// Numbers of every size, signed zeros among them.
inline std::vector<float> spread(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 40) - 30);
    value = random() % 17 == 0 ? (random() % 2 ? 0.0f : -0.0f) : normal(random) * size;
  }
  return values;
}

inline Trained fresh(size_t count) {
  const std::vector<float> zeros(count);
  return {spread(count, 99), zeros, zeros, zeros};
}

inline StepArrays arrays_of(Trained& t, const std::vector<float>& gradients) {
  const auto count = static_cast<int64_t>(gradients.size());
  return {t.parameters.data(), gradients.data(), {t.first.data(), t.second.data(), t.largest.data()}, count};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void expect_same(const Trained& ours, const Trained& theirs, const std::string& what) {
  EXPECT_TRUE(same_bits(ours.parameters, theirs.parameters)) << what << ": parameters";
  EXPECT_TRUE(same_bits(ours.first, theirs.first)) << what << ": momentum or mean";
  EXPECT_TRUE(same_bits(ours.second, theirs.second)) << what << ": squares";
  EXPECT_TRUE(same_bits(ours.largest, theirs.largest)) << what << ": largest squares";
}

constexpr size_t kSizes[] = {1, 15, 16, 17, 2047, 2048, 5003};
constexpr int kSteps = 4;

template <class Set>
class StepSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    kernels_ = Set::kernels();
    if (kernels_ == nullptr) GTEST_SKIP() << "this machine or this build has no such instruction set";
  }
  void check_sgd(const SgdSettings& settings, const std::string& what) {
    for (const size_t count : kSizes) {
      Trained ours = fresh(count), theirs = ours;
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<float> gradients = spread(count, step);
        sgd_step_with(*kernels_, settings, arrays_of(ours, gradients), step == 0);
        StepReference(kernels_->fma, nullptr).sgd(settings, gradients, step == 0, theirs);
      }
      expect_same(ours, theirs, what + ", " + std::to_string(count) + " elements");
    }
  }
  void check_adam(const AdamSettings& settings, const std::string& what) {
    for (const auto root : {+odd_root, static_cast<void (*)(const float*, float*, int64_t)>(nullptr)}) {
      for (const size_t count : kSizes) {
        Trained ours = fresh(count), theirs = ours;
        for (int step = 1; step <= kSteps; ++step) {
          const std::vector<float> gradients = spread(count, step);
          adam_step_with(*kernels_, settings, arrays_of(ours, gradients), step, root);
          StepReference(kernels_->fma, root).adam(settings, gradients, step, theirs);
        }
        const std::string how = root ? ", given root, " : ", IEEE root, ";
        expect_same(ours, theirs, what + how + std::to_string(count) + " elements");
      }
    }
  }

  const StepKernels* kernels_ = nullptr;
};

// The kernels of a set, where it is supported.
template <class Set>
struct StepsOf {
  static const StepKernels* kernels() {
    for (const InstructionSet& set : supported_instruction_sets()) {
      if (set.name == std::string(Set::name())) return &set.step;
    }
    return nullptr;
  }
};

// The compiler's baseline, in both roundings.
struct Unfused {
  static const StepKernels* kernels() { return &scalar_step_kernels(); }
};
struct Fused {
  static const StepKernels* kernels() { return &scalar_fma_step_kernels(); }
};
using EveryStepKernels = ::testing::Types<Unfused, Fused, StepsOf<Avx2>, StepsOf<Avx512>>;

TYPED_TEST_SUITE(StepSuite, EveryStepKernels);

TYPED_TEST(StepSuite, SgdIsTheReference) {
  this->check_sgd({0.1, 0, 0, 0, false, false}, "plain");
  this->check_sgd({0.1, 0, 0, 0.01, false, true}, "decay, maximize");
  this->check_sgd({0.1, 0.9, 0, 0, false, false}, "momentum");
  this->check_sgd({0.1, 0.9, 0.3, 0.01, false, true}, "momentum, dampening, decay, maximize");
  this->check_sgd({0.1, 0.9, 0, 0.01, true, false}, "nesterov, decay");
}

TYPED_TEST(StepSuite, AdamIsTheReference) {
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0, false, false, false}, "Adam");
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0.1, false, true, false}, "Adam, decay, amsgrad");
  this->check_adam({1e-3, 0.9, 0.95, 1e-8, 0.1, true, false, false}, "AdamW");
  this->check_adam({1e-3, 0.3, 0.95, 1e-6, 0.1, true, true, true}, "AdamW, small beta1, amsgrad, maximize");
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0, true, false, true}, "AdamW without decay, maximize");
}

TYPED_TEST(StepSuite, WhereAnArrayIsCutDoesNotShow) {
  constexpr size_t kCount = 6001, kCut = 1027;
  const AdamSettings settings{1e-3, 0.9, 0.999, 1e-8, 0.1, true, true, false};
  Trained whole = fresh(kCount), cut = whole;
  const std::vector<float> gradients = spread(kCount, 5);
  StepArrays all = arrays_of(whole, gradients), head = arrays_of(cut, gradients), rest = head;
  adam_step_with(*this->kernels_, settings, all, 3, odd_root);
  head.count = kCut;
  rest.parameters += kCut, rest.gradients += kCut, rest.count -= kCut;
  for (float*& state : rest.state) state += kCut;
  adam_step_with(*this->kernels_, settings, rest, 3, odd_root);
  adam_step_with(*this->kernels_, settings, head, 3, odd_root);
  expect_same(cut, whole, "in two parts");
}

TYPED_TEST(StepSuite, AmsgradLetsNanThrough) {
  Trained ours = fresh(40);
  std::vector<float> gradients = spread(40, 1);
  gradients[7] = NAN;
  const AdamSettings settings{1e-3, 0.9, 0.999, 1e-8, 0, false, true, false};
  adam_step_with(*this->kernels_, settings, arrays_of(ours, gradients), 1, nullptr);
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(std::isnan(ours.largest[i]), i == 7) << i;
    EXPECT_EQ(std::isnan(ours.parameters[i]), i == 7) << i;
  }
}

namespace {

constexpr AdamSettings kAdam{1e-2, 0.9, 0.999, 1e-8, 0.1, true, false, false};
constexpr SgdSettings kSgd{1e-2, 0.9, 0, 0.1, false, false};

bool has_kernels(bool fma) {
  for (const InstructionSet& set : supported_instruction_sets()) {
    if (set.step.fma == fma) return true;
  }
  return false;
}

TEST(Step, RoundsAsItIsTold) {
  const std::vector<float> gradients = spread(3001, 3);
  for (const bool fma : {false, true}) {
    if (!has_kernels(fma)) continue;
    Trained ours = fresh(3001), theirs = ours;
    adam_step(kAdam, arrays_of(ours, gradients), 1, {odd_root, fma});
    sgd_step(kSgd, arrays_of(ours, gradients), false, {odd_root, fma});
    const StepReference reference(fma, odd_root);
    reference.adam(kAdam, gradients, 1, theirs);
    reference.sgd(kSgd, gradients, false, theirs);
    expect_same(ours, theirs, fma ? "fused" : "unfused");
  }
}

TEST(Step, TheRoundingsDiffer) {
  const std::vector<float> gradients = spread(3001, 3);
  Trained fused = fresh(3001), unfused = fused;
  sgd_step_with(scalar_fma_step_kernels(), kSgd, arrays_of(fused, gradients), false);
  sgd_step_with(scalar_step_kernels(), kSgd, arrays_of(unfused, gradients), false);
  EXPECT_FALSE(same_bits(fused.parameters, unfused.parameters)) << "then no test here sees which one was used";
}

TEST(Step, NothingIsNoWork) {
  const StepMath math{nullptr, supported_instruction_sets().front().step.fma};
  EXPECT_NO_THROW(adam_step(kAdam, {}, 1, math));
  EXPECT_NO_THROW(sgd_step(kSgd, {}, true, math));
}

TEST(Step, MissingArraysAndBadCountsAreRefused) {
  const StepMath math{nullptr, supported_instruction_sets().front().step.fma};
  const std::vector<float> gradients = spread(20, 1);
  Trained trained = fresh(20);
  const Trained before = trained;
  StepArrays arrays = arrays_of(trained, gradients);
  arrays.state[1] = nullptr;
  EXPECT_THROW(adam_step(kAdam, arrays, 1, math), Error);
  arrays.state[0] = nullptr;
  EXPECT_THROW(sgd_step(kSgd, arrays, true, math), Error);
  arrays = arrays_of(trained, gradients);
  arrays.count = -1;
  EXPECT_THROW(adam_step(kAdam, arrays, 1, math), Error);
  expect_same(trained, before, "after refusals");
}

}  // namespace

}  // namespace ringdp::kernels::testing
