#include "gpu/device/run_steps.h"

#include <gtest/gtest.h>

#include "gpu/device/host_run.h"
#include "long_tests.h"

namespace ringdp::gpu::testing {
namespace {

using plan::Collective;
using plan::DeviceAlgorithm;
using plan::testing::device_kinds;
using plan::testing::DeviceKind;

// A sequence of every kind of plan, some twice in a row, so that each meets what the others have left in the arena.
std::vector<Collected> sequence_of(DType dtype, uint32_t seed) {
  static constexpr int64_t kPacks[] = {1, 13, 0, 7, 37, 64, 2};
  std::minstd_rand random(seed);
  std::vector<Collected> sequence;
  for (const DeviceKind& kind : device_kinds()) {
    for (int k = 0; k < 3; ++k) {
      Collected one;
      one.kind = k == 2 ? device_kinds()[random() % device_kinds().size()] : kind;
      one.packs = kPacks[random() % std::size(kPacks)];
      one.dtype = dtype;
      one.in_place = random() % 2 == 0;
      one.root = static_cast<int>(random() % plan::kMaxDeviceRanks);
      one.op = dtype == DType::kU8 || random() % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
      one.segment_bytes = random() % 2 == 0 ? 32 : 1 << 20;
      sequence.push_back(one);
    }
  }
  std::shuffle(sequence.begin(), sequence.end(), random);
  return sequence;
}

// Ranks x blocks x threads stay below 64.
HostLayout layout_of(int world, uint32_t seed) {
  HostLayout layout;
  layout.world = world;
  layout.blocks = 1 + static_cast<int>(seed % 3);
  layout.threads = world * layout.blocks > 12 ? 2 : 1 + static_cast<int>(seed % 4);
  layout.seed = seed;
  return layout;
}

class EveryWorld : public ::testing::TestWithParam<int> {};

TEST_P(EveryWorld, AllPlansGiveTheBitsOfTheSerialFold) {
  const uint32_t seeds = once_will_do() ? 1 : 6;
  for (uint32_t seed = seeds == 1 ? GetParam() : 1, last = seed + seeds; seed < last; ++seed) {
    const DType dtype = seed % 3 == 0 ? DType::kU8 : seed % 3 == 1 ? DType::kF32 : DType::kBF16;
    EXPECT_EQ(HostRun(layout_of(GetParam(), seed), sequence_of(dtype, seed)).run(), "") << "seed " << seed;
  }
}

// The same with stores that are seen at once, and so by TSan as made by their thread.
TEST_P(EveryWorld, NoAccessRaces) {
  HostLayout layout = layout_of(GetParam(), GetParam() + 20);
  layout.hostility.keeps_stores = false;
  EXPECT_EQ(HostRun(layout, sequence_of(DType::kBF16, layout.seed)).run(), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryWorld, ::testing::Range(1, 9));

TEST(RunSteps, CountsEveryLaunchOnce) {
  HostLayout layout;
  layout.blocks = 3;
  std::vector<Collected> five(5);
  HostGroup group(layout, launches_of(layout, five));
  group.run();
  for (int r = 0; r < layout.world; ++r) {
    EXPECT_EQ(group.rank(r).epoch.launches, 5u);
    EXPECT_EQ(group.rank(r).epoch.finished_blocks, 0u);
  }
}

// Flags and marks of long ago, and epochs beyond 32 bits.
TEST(RunSteps, RunsAtAnyEpoch) {
  for (const uint64_t before : {uint64_t{0xfffffffd}, uint64_t{1} << 33, (uint64_t{1} << 33) - 3}) {
    HostLayout layout;
    Collected push;
    push.kind.algorithm = DeviceAlgorithm::kPush;
    HostRun run(layout, {push, push, {}, push, push});
    run.epoch = before;
    EXPECT_EQ(run.run(), "") << before;
  }
}

TEST(RunSteps, WhatIsCapturedRunsAsAnythingElse) {
  Collected push;
  push.kind.algorithm = DeviceAlgorithm::kPush;
  HostRun run({}, {push, {}, push, {}});
  run.mutate = [](Work& work) { work.captured = 1; };
  EXPECT_EQ(run.run(), "");
}

// Its peers' memory may be gone: not even a flag or a mark is written there.
TEST(RunSteps, AReplayAfterItsGroupTouchesNothing) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kPush, DeviceAlgorithm::kDirect}) {
    HostLayout layout;
    Collected one;
    one.kind.algorithm = algorithm;
    HostGroup group(layout, launches_of(layout, {one}));
    group.mutate = [](Work& work) {
      work.captured = 1;
      for (int r = 0; r < work.world; ++r) work.input[r] = work.output[r] = work.pushed[r] = nullptr;
    };
    group.abort_all();
    group.run();
    for (int r = 0; r < layout.world; ++r) {
      EXPECT_EQ(group.rank(r).epoch.launches, 1u) << "it is counted all the same";
      EXPECT_EQ(group.rank(r).flags->of[plan::kEntrySlot][0][1 - r].value, 0u);
    }
  }
}

// Its window can change next, which peers may still read; but a replay may come long after its group.
TEST(RunSteps, WhoDoesNotBeginEndsItForAllUnlessItIsAReplay) {
  for (const int captured : {0, 1}) {
    HostLayout layout;
    Collected one;
    uint32_t ends[plan::kMaxDeviceRanks] = {};
    HostGroup group(layout, launches_of(layout, {one}));
    group.mutate = [&](Work& work) {
      work.captured = captured;
      for (int r = 0; r < work.world; ++r) work.aborts[r] = &ends[r];
    };
    group.abort_all();
    group.run();
    for (int r = 0; r < layout.world; ++r) EXPECT_EQ(ends[r], captured ? 0u : 1u);
  }
}

TEST(RunSteps, MarksAreNeverThoseOfFreshMemoryNorOfTheEpochBeforeLast) {
  for (const uint64_t epoch : {uint64_t{0}, uint64_t{0xfffffffe}, uint64_t{0xffffffff}, uint64_t{1} << 32}) {
    EXPECT_NE(mark_of(epoch), 0u);
    EXPECT_NE(mark_of(epoch), mark_of(epoch + 2));
  }
}

TEST(RunSteps, BlocksShareOutAllPacks) {
  for (const int64_t packs : {0, 1, 5, 64, 1000}) {
    for (const int blocks : {1, 3, 64}) {
      int64_t next = 0;
      for (int b = 0; b < blocks; ++b) {
        const PackRange share = share_of_block(packs, blocks, b);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.end - share.begin, packs / blocks + 1);
        next = share.end;
      }
      EXPECT_EQ(next, packs);
    }
  }
}

}  // namespace
}  // namespace ringdp::gpu::testing
