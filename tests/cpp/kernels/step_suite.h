// The step tests every instruction set passes; step_<set>_test.cc instantiates them with a type that has kernels().
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "step_reference.h"

namespace ringdp::kernels::testing {

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

TYPED_TEST_SUITE_P(StepSuite);

TYPED_TEST_P(StepSuite, SgdIsTheReference) {
  this->check_sgd({0.1, 0, 0, 0, false, false}, "plain");
  this->check_sgd({0.1, 0, 0, 0.01, false, true}, "decay, maximize");
  this->check_sgd({0.1, 0.9, 0, 0, false, false}, "momentum");
  this->check_sgd({0.1, 0.9, 0.3, 0.01, false, true}, "momentum, dampening, decay, maximize");
  this->check_sgd({0.1, 0.9, 0, 0.01, true, false}, "nesterov, decay");
}

TYPED_TEST_P(StepSuite, AdamIsTheReference) {
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0, false, false, false}, "Adam");
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0.1, false, true, false}, "Adam, decay, amsgrad");
  this->check_adam({1e-3, 0.9, 0.95, 1e-8, 0.1, true, false, false}, "AdamW");
  this->check_adam({1e-3, 0.3, 0.95, 1e-6, 0.1, true, true, true}, "AdamW, small beta1, amsgrad, maximize");
  this->check_adam({1e-3, 0.9, 0.999, 1e-8, 0, true, false, true}, "AdamW without decay, maximize");
}

TYPED_TEST_P(StepSuite, WhereAnArrayIsCutDoesNotShow) {
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

TYPED_TEST_P(StepSuite, AmsgradLetsNanThrough) {
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

REGISTER_TYPED_TEST_SUITE_P(StepSuite, SgdIsTheReference, AdamIsTheReference, WhereAnArrayIsCutDoesNotShow,
                            AmsgradLetsNanThrough);

}  // namespace ringdp::kernels::testing
