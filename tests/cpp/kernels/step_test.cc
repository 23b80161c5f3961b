// The choice of kernels, and what is refused. The formulas are tested per instruction set (step_suite.h).
#include "kernels/step.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "step_suite.h"

namespace ringdp::kernels::testing {
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
