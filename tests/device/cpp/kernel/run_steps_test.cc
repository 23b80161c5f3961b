#include "device/kernel/run_steps.h"

#include <gtest/gtest.h>

#include "device/cpp/kernel/host_run.h"
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
  const uint32_t seeds = once_will_do() ? 1 : long_tests() ? 6 : 3;  // one for each type of elements
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

// Work on callers' own memory, in which nobody copies a result to safety: what is over touches nothing, and whoever
// aborts makes all results void before its caller can change what peers still read.

namespace {

void be_in_place(HostGroup& group, int world) {
  group.mutate = [&group, world](Work& work) {
    for (int r = 0; r < world; ++r) work.aborts[r] = &group.rank(r).abort;
  };
}

bool is_touched(HostGroup& group, const HostLayout& layout, const Launch& launch) {
  bool touched = false;
  for (int r = 0; r < layout.world; ++r) {
    const plan::DevicePlan& plan = launch.plans[r];
    const char* const output = group.output(r, 0);
    touched |= std::any_of(output, output + plan.output * size_of(plan.dtype), [](char byte) { return byte != 0x11; });
  }
  return touched;
}

// As a stream runs it, a step at a time: its waits were released, so it comes to the sum though nobody has brought
// anything.
Launch released(const HostLayout& layout) {
  Launch launch = launch_of(layout, Collected{});
  for (plan::DevicePlan& plan : launch.plans) {
    const auto is_flag = [](const plan::DeviceStep& step) {
      return step.verb == plan::DeviceVerb::kPost || step.verb == plan::DeviceVerb::kAwait;
    };
    plan.steps.erase(std::remove_if(plan.steps.begin(), plan.steps.end(), is_flag), plan.steps.end());
  }
  return launch;
}

bool writes_after_the_end(bool in_place) {
  HostLayout layout;
  layout.world = 3;
  const Launch launch = released(layout);
  HostGroup group(layout, {launch});
  if (in_place) be_in_place(group, layout.world);
  for (int r = 0; r < layout.world; ++r) {
    std::memset(group.output(r, 0), 0x11, launch.plans[r].output * size_of(launch.plans[r].dtype));
  }
  group.abort_all();
  group.run();
  for (int r = 0; r < layout.world; ++r) EXPECT_EQ(group.rank(r).epoch.launches, 1u) << "counted all the same";
  return is_touched(group, layout, launch);
}

TEST(CallersMemory, AStreamThatWasReleasedTouchesNothing) {
  EXPECT_FALSE(writes_after_the_end(true));
  EXPECT_TRUE(writes_after_the_end(false)) << "in a window it would: the test sees it";
}

TEST(CallersMemory, WhoGivesUpMakesAllResultsVoid) {
  for (const bool in_place : {true, false}) {
    HostLayout layout;
    layout.world = 3;
    layout.left_out = 2;
    layout.deadline_ns = 50'000'000;
    HostGroup group(layout, launches_of(layout, {Collected{}}));
    if (in_place) be_in_place(group, layout.world);
    group.run();
    EXPECT_EQ(group.rank(0).abort, 1u);
    EXPECT_EQ(group.rank(2).abort, in_place ? 1u : 0u) << "it has not even begun";
  }
}

TEST(CallersMemory, WhatIsNotOverHasTheBitsOfTheSerialFold) {
  HostLayout layout;
  layout.world = 4;
  Collected one;
  one.in_place = true;
  HostRun run(layout, {one, one, one});
  std::vector<uint32_t> aborts(static_cast<size_t>(layout.world));
  run.mutate = [&](Work& work) {
    for (int r = 0; r < layout.world; ++r) work.aborts[r] = &aborts[static_cast<size_t>(r)];
  };
  EXPECT_EQ(run.run(), "");
  EXPECT_EQ(aborts, std::vector<uint32_t>(4));
}

}  // namespace

// What these tests would miss if they were blind: each thing that keeps plans right is taken away, and must show as
// wrong bits, or as a wait without end. Chance decides when, so a mutant runs again with other seeds until it is
// caught. Flags one by one are taken away in tests/device/cpp/plan/check_test.cc, where no chance is needed.

namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

constexpr uint32_t kSeeds = 300;

// TSan stops at the races that mutants have, and rightly.
class Mutants : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "mutants race";
#endif
  }
};

// The collective three times, so that each can meet what the one before has left.
template <class Break>
::testing::AssertionResult is_caught(const plan::testing::DeviceKind& kind, Break take_away, HostLayout layout = {}) {
  Collected one;
  one.kind = kind;
  one.packs = 48;
  one.segment_bytes = 16 * kPackBytes;  // so that all threads have work
  for (layout.seed = 1; layout.seed <= kSeeds; ++layout.seed) {
    HostRun run(layout, {one, one, one});
    take_away(run);
    if (!run.run().empty()) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << text_of(kind) << " lives on after " << kSeeds << " runs";
}

// All flags of a slot, on both sides.
auto without_slot(int slot) {
  return [slot](HostRun& run) {
    for (Launch& launch : run.launches()) {
      for (plan::DevicePlan& plan : launch.plans) {
        std::vector<DeviceStep> kept;
        for (const DeviceStep& step : plan.steps) {
          if (!plan::is_flag(step) || step.slot != slot) kept.push_back(step);
        }
        plan.steps = kept;
      }
    }
  };
}

TEST_F(Mutants, WithoutTheEntry) {
  for (const Collective what :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce, Collective::kGather}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, what}, without_slot(plan::kEntrySlot))) << name_of(what);
  }
  for (const Collective what : {Collective::kAllReduce, Collective::kReduce}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kOneShot, what}, without_slot(plan::kEntrySlot))) << name_of(what);
  }
}

TEST_F(Mutants, WithoutTheExit) {
  for (const Collective what :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll,
        Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, what}, without_slot(plan::kExitSlot))) << name_of(what);
  }
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kOneShot, Collective::kReduce}, without_slot(plan::kExitSlot)));
}

TEST_F(Mutants, WithoutTheFlagsOfARing) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kRankRing, DeviceAlgorithm::kRotatedRing}) {
    for (const int slot : {plan::kUpSlot, plan::kDownSlot}) {
      HostLayout layout;
      layout.world = 3;
      EXPECT_TRUE(is_caught({algorithm, Collective::kAllReduce}, without_slot(slot), layout)) << slot;
    }
  }
}

TEST_F(Mutants, WithoutTheBlocksSync) {
  HostLayout layout;
  layout.hostility.syncs = false;
  layout.threads = 4;
  const auto nothing = [](HostRun&) {};
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, Collective::kAllReduce}, nothing, layout));
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kRankRing, Collective::kAllReduce}, nothing, layout));
}

TEST_F(Mutants, WithARankLeftOutOfTheSum) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kDirect, DeviceAlgorithm::kOneShot}) {
    const auto leave_out = [](HostRun& run) {
      for (Launch& launch : run.launches()) launch.kernel = sum_kernel(DType::kF32, 1);
    };
    for (const Collective what : {Collective::kAllReduce, Collective::kReduce}) {
      EXPECT_TRUE(is_caught({algorithm, what}, leave_out)) << name_of(what);
    }
  }
}

// pushed_part() takes the other parity's part to be `world` parts on. Who is behind waits for marks that are gone.
TEST_F(Mutants, WithOnePartForBothParities) {
  HostLayout layout;
  layout.deadline_ns = 50'000'000;
  const auto one_part = [](HostRun& run) { run.mutate = [](Work& work) { work.world = 0; }; };
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kPush, Collective::kAllReduce}, one_part, layout));
}

// A mark that does not change lets through what the epoch before last has left.
TEST_F(Mutants, WithMarksThatStayTheSame) {
  const auto same_marks = [](HostRun& run) { run.mutate = [](Work& work) { work.epoch->launches = 0; }; };
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kPush, Collective::kAllReduce}, same_marks));
}

}  // namespace

}  // namespace ringdp::gpu::testing
