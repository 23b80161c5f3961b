// Folds of plans on links as device work: run by the kernels' text, they have the bits of the serial fold.
#include "device/nccl/fold_work.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "device/cpp/nccl/folds.h"

namespace ringdp::gpu {
namespace {

using testing::folded;
using testing::serially;

TEST(FoldWork, SumsOfAFewAreOneStep) {
  EXPECT_EQ(work_of(testing::fold_of(8, DType::kBF16, true)).steps, 1);
  EXPECT_EQ(work_of(testing::fold_of(9, DType::kBF16, true)).steps, 8);
  EXPECT_EQ(work_of(testing::fold_of(2, DType::kBF16, false)).steps, 1);
}

TEST(FoldWork, EveryNumberOfSourcesHasTheBitsOfTheSerialFold) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    for (const int sources : {2, 3, 8, 9, 17}) {
      EXPECT_EQ(folded(sources, dtype, false), serially(sources, dtype, false)) << name_of(dtype) << " of " << sources;
    }
    for (const int sources : {2, 3, 9}) {
      EXPECT_EQ(folded(sources, dtype, true), serially(sources, dtype, true)) << name_of(dtype) << ", a wide one first";
    }
  }
}

TEST(FoldWork, ManySourcesNeedRoomForTheirSum) {
  plan::Plan plan;
  plan.dtype = DType::kBF16;
  plan::Step step;
  step.verb = plan::Verb::kFold;
  step.dsts.resize(1);
  step.dsts[0].count = 64;
  step.srcs.resize(8);
  EXPECT_EQ(spare_bytes(plan, step), 256) << "a partial sum is no one step";
  step.finish = true;
  EXPECT_EQ(spare_bytes(plan, step), 0);
  step.srcs[0].form = plan::Form::kWide;
  EXPECT_EQ(spare_bytes(plan, step), 256);
  step.srcs.resize(2);
  EXPECT_EQ(spare_bytes(plan, step), 0);
  step.srcs.resize(9);
  EXPECT_EQ(spare_bytes(plan, step), 256);
  step.srcs.resize(1);
  EXPECT_EQ(spare_bytes(plan, step), 0) << "rounded, not summed";
  step.finish = false;
  step.srcs.assign(8, step.srcs[0]);
  step.dsts[0].form = plan::Form::kWide;
  EXPECT_EQ(spare_bytes(plan, step), 0) << "a fold in the wide type";
}

TEST(FoldWork, OneSourceAloneIsDividedWhereTypesAreTheSame) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    EXPECT_EQ(folded(1, dtype, false), serially(1, dtype, false)) << name_of(dtype);
  }
  EXPECT_EQ(folded(1, DType::kF32, true), serially(1, DType::kF32, true));
  Fold fold = testing::fold_of(1, DType::kBF16, true);
  fold.sources[0].wide = true;
  EXPECT_THROW(work_of(fold), Error);
}

plan::Step step_of(std::vector<plan::Form> sources, plan::Form result) {
  plan::Step step;
  step.verb = plan::Verb::kFold;
  for (const plan::Form form : sources) step.srcs.push_back({plan::Space::kScratch, form});
  step.dsts.push_back({plan::Space::kScratch, result});
  return step;
}

TEST(FoldWork, PartialSumsAloneAreNoFoldOfTheTensorsType) {
  using plan::Form;
  EXPECT_TRUE(is_all_wide(step_of({Form::kWide, Form::kWide}, Form::kWide)));
  EXPECT_FALSE(is_all_wide(step_of({Form::kWide, Form::kRaw}, Form::kWide)));
  EXPECT_FALSE(is_all_wide(step_of({Form::kWide}, Form::kRaw)));
  plan::Plan plan;
  plan.dtype = DType::kBF16;
  EXPECT_TRUE(only_rounds(plan, step_of({Form::kWide}, Form::kRaw)));
  EXPECT_FALSE(only_rounds(plan, step_of({Form::kWide, Form::kRaw}, Form::kRaw)));
  plan.dtype = DType::kF32;
  EXPECT_FALSE(only_rounds(plan, step_of({Form::kWide}, Form::kRaw)));
}

TEST(FoldWork, WhatNoKernelDoesIsRefused) {
  EXPECT_THROW(work_of(testing::fold_of(1, DType::kBF16, false)), Error);
  EXPECT_THROW(work_of(testing::fold_of(300, DType::kBF16, true)), Error);
}

}  // namespace
}  // namespace ringdp::gpu
