// Folds of plans on links as device work: run by the kernels' text, they have the bits of the serial fold.
#include "device/nccl/fold_work.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cpp/kernel/host_run.h"
#include "plan/oracle.h"

namespace ringdp::gpu::testing {
namespace {

constexpr int64_t kFoldElements = 64;
constexpr size_t kSlotBytes = kFoldElements * 8;

// Slots of one allocation: the sources, the spare one, the result.
struct FoldMemory {
  explicit FoldMemory(int sources) : packs(static_cast<size_t>(sources + 2) * kSlotBytes / sizeof(Pack)) {}
  char* slot(int index) { return reinterpret_cast<char*>(packs.data()) + static_cast<size_t>(index) * kSlotBytes; }
  std::vector<Pack> packs;
};

Fold fold_in(FoldMemory& memory, int sources, DType dtype, bool finish) {
  Fold fold;
  fold.dtype = dtype;
  for (int k = 0; k < sources; ++k) fold.sources.push_back({memory.slot(k), false});
  fold.spare = memory.slot(sources);
  fold.result = {memory.slot(sources + 1), !finish};
  fold.count = kFoldElements;
  fold.finish = finish;
  return fold;
}

Fold fold_of(int sources, DType dtype, bool finish) {
  static FoldMemory memory(400);
  return fold_in(memory, sources, dtype, finish);
}

plan::testing::Bytes source(int k, DType dtype) {
  return plan::testing::random_tensor(kFoldElements, dtype, static_cast<uint64_t>(k) + 1);
}

RunKernel kernel_for(DType dtype, int world) {
  if (dtype == DType::kF64) return kernel_of<double, Sum>(world);
  if (dtype == DType::kI32) return kernel_of<int32_t, Sum>(world);
  return sum_kernel(dtype, world);
}

void run_by_one_thread(Work& work, DType dtype) {
  Epoch epoch = {};
  uint32_t abort = 0;
  Expired expired = {};
  work.blocks = 1;
  work.deadline_ns = 1;
  work.epoch = &epoch;
  work.abort = &abort;
  work.expired = &expired;
  HostBlock block(1);
  HostThread thread;
  thread.its_block = &block;
  thread.hostility = {false, true, 0};
  this_thread = &thread;
  kernel_for(dtype, work.world)(work);
  this_thread = nullptr;
}

// What lies in the result. `wide_first`: the first source is a partial sum.
plan::testing::Bytes folded(int sources, DType dtype, bool wide_first) {
  FoldMemory memory(sources);
  for (int k = 0; k < sources; ++k) {
    const plan::testing::Bytes bytes = source(k, k == 0 && wide_first ? wide_of(dtype) : dtype);
    std::memcpy(memory.slot(k), bytes.data(), bytes.size());
  }
  Fold fold = fold_in(memory, sources, dtype, true);
  fold.sources[0].wide = wide_first;
  Work work = work_of(fold);
  run_by_one_thread(work, dtype);
  const auto* const result = reinterpret_cast<const std::byte*>(memory.slot(sources + 1));
  return {result, result + kFoldElements * size_of(dtype)};
}

plan::testing::Bytes serially(int sources, DType dtype, bool wide_first) {
  const DType wide = wide_of(dtype);
  plan::testing::Bytes result(static_cast<size_t>(kFoldElements * size_of(dtype)));
  for (int64_t i = 0; i < kFoldElements; ++i) {
    const DType first = wide_first ? wide : dtype;
    double sum = plan::testing::load(source(0, first).data(), i, first);
    for (int k = 1; k < sources; ++k) {
      sum = plan::testing::combine(sum, plan::testing::load(source(k, dtype).data(), i, dtype), wide, ReduceOp::kSum);
    }
    plan::testing::store(result.data(), i, dtype, sum);
  }
  return result;
}

TEST(FoldWork, SumsOfAFewAreOneStep) {
  EXPECT_EQ(work_of(fold_of(8, DType::kBF16, true)).steps, 1);
  EXPECT_EQ(work_of(fold_of(9, DType::kBF16, true)).steps, 8);
  EXPECT_EQ(work_of(fold_of(2, DType::kBF16, false)).steps, 1);
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
  Fold fold = fold_of(1, DType::kBF16, true);
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
  EXPECT_THROW(work_of(fold_of(1, DType::kBF16, false)), Error);
  EXPECT_THROW(work_of(fold_of(300, DType::kBF16, true)), Error);
}

}  // namespace
}  // namespace ringdp::gpu::testing
