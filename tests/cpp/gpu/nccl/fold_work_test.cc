// Folds of plans on links as device work: run by the kernels' text, they have the bits of the serial fold.
#include "gpu/nccl/fold_work.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "gpu/nccl/folds.h"

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
}

TEST(FoldWork, WhatNoKernelDoesIsRefused) {
  EXPECT_THROW(work_of(testing::fold_of(1, DType::kBF16, false)), Error);
  EXPECT_THROW(work_of(testing::fold_of(300, DType::kBF16, true)), Error);
}

}  // namespace
}  // namespace ringdp::gpu
