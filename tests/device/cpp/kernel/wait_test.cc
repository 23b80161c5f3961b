#include "device/kernel/wait.h"

#include <gtest/gtest.h>

#include "device/cpp/kernel/host_run.h"
#include "long_tests.h"

namespace ringdp::gpu::testing {
namespace {

using plan::testing::device_kinds;
using plan::testing::DeviceKind;

constexpr uint64_t kSoon = 100'000'000;  // ns, of a clock that waits for threads which have no core

Collected one_of(const DeviceKind& kind) {
  Collected one;
  one.kind = kind;
  return one;
}

// Whom rank `r` waited for, after whoever that one waited for, and so on: whoever waits for nobody is to blame.
int blamed_by(HostGroup& group, int r) {
  for (int hops = 0; hops < plan::kMaxDeviceRanks && group.rank(r).expired.set == 2; ++hops) {
    r = group.rank(r).expired.peer;
  }
  return r;
}

TEST(Wait, EverybodyLeavesAtTheDeadlineAndNamesTheRankThatIsMissing) {
  for (const DeviceKind& kind : device_kinds()) {
    for (const int missing : {0, 2}) {
      HostLayout layout;
      layout.world = 3;
      layout.deadline_ns = kSoon;
      layout.left_out = missing;
      HostGroup group(layout, launches_of(layout, {one_of(kind)}));
      group.run();
      int waited = 0;
      for (int r = 0; r < layout.world; ++r) {
        const Expired& expired = group.rank(r).expired;
        if (r == missing || expired.set == 0) continue;
        ++waited;
        EXPECT_EQ(expired.set, 2u);
        EXPECT_EQ(expired.rank, r);
        EXPECT_EQ(expired.epoch, 1u);
        EXPECT_EQ(expired.launch, group.rank(r).work.stream_epoch);
        EXPECT_NE(expired.seen, expired.wanted);
        EXPECT_EQ(group.rank(r).abort, 1u);
        EXPECT_EQ(group.rank(r).epoch.launches, 1u);
        EXPECT_EQ(blamed_by(group, r), missing) << text_of(kind) << " rank " << r;
      }
      EXPECT_GE(waited, 1) << text_of(kind);
    }
  }
}

TEST(Wait, TheRecordTellsWhichFlagOfWhichStep) {
  HostLayout layout;
  layout.blocks = 1;
  layout.deadline_ns = kSoon;
  layout.left_out = 1;
  Launch launch = launch_of(layout, {});
  HostGroup group(layout, {launch});
  group.rank(0).epoch.launches = 41;
  group.run();
  const Expired& expired = group.rank(0).expired;
  EXPECT_EQ(launch.plans[0].steps[expired.step].verb, plan::DeviceVerb::kAwait);
  EXPECT_EQ(expired.slot, plan::kEntrySlot);
  EXPECT_EQ(expired.peer, 1);
  EXPECT_EQ(expired.block, 0);
  EXPECT_EQ(expired.wanted, 42 * kValuesPerEpoch + 1);
  EXPECT_EQ(expired.seen, 0u);
}

// Nobody writes anything more: what was there before the launch is there after it.
TEST(Wait, LaterStepsDoNothing) {
  HostLayout layout;
  layout.deadline_ns = kSoon;
  layout.left_out = 1;
  HostGroup group(layout, launches_of(layout, {{}}));
  std::vector<char> before;
  group.before = [&](int rank, int launch) {
    fill(group.output(rank, launch), DType::kF32, 13 * 4, 5);
    before.assign(group.output(rank, launch), group.output(rank, launch) + 13 * kPackBytes);
  };
  group.run();
  EXPECT_EQ(std::memcmp(group.output(0, 0), before.data(), before.size()), 0);
}

// One rank stops at each of its steps and gives the alarm; nobody hangs, and nobody claims that a deadline has passed.
TEST(Wait, AnAbortAtAnyStepEndsAllWaits) {
  for (const DeviceKind& kind : device_kinds()) {
    HostLayout layout;
    layout.world = 3;
    const std::vector<Launch> whole = launches_of(layout, {one_of(kind)});
    const size_t stride = long_tests() ? 1 : 3;
    for (size_t steps = 0; steps < whole[0].plans[1].steps.size(); steps += stride) {
      std::vector<Launch> cut = whole;
      cut[0].plans[1].steps.resize(steps);
      HostGroup group(layout, cut);
      group.after = [&](int rank, int) {
        if (rank == 1) group.abort_all();
      };
      group.run();
      for (int r = 0; r < layout.world; ++r) EXPECT_EQ(group.rank(r).expired.set, 0u) << text_of(kind) << " " << steps;
    }
  }
}

TEST(Wait, TheFirstRecordStays) {
  HostLayout layout;
  layout.deadline_ns = kSoon;
  layout.left_out = 1;
  HostGroup group(layout, launches_of(layout, {{}}));
  group.rank(0).expired.set = 2;
  group.rank(0).expired.peer = 77;
  group.run();
  EXPECT_EQ(group.rank(0).expired.peer, 77);
  EXPECT_EQ(group.rank(0).abort, 1u);
}

struct PollPrim : HostPrim {
  inline static int looks = 0, reads_of_the_host = 0;
  inline static uint64_t now = 0, step = 0;
  inline static uint32_t abort = 0;
  static uint64_t clock_ns() {
    ++looks;
    return now += step;
  }
  static int block() { return 0; }
  template <class V>
  static V load_acquire(const V* from) {
    if (static_cast<const void*>(from) == &abort) ++reads_of_the_host;
    return *from;
  }
  static void store_release(uint32_t* to, uint32_t value) { *to = value; }
};

// Waits of one launch whose polls find nothing.
class WaitsOfOneThread : public ::testing::Test {
 protected:
  WaitsOfOneThread() {
    PollPrim::looks = PollPrim::reads_of_the_host = 0;
    PollPrim::abort = 0;
    PollPrim::now = 0;
    PollPrim::step = 10;
    work.abort = &PollPrim::abort;
    work.expired = &expired;
    work.epoch = &epoch;
  }
  bool wait(uint64_t deadline_ns) {
    work.deadline_ns = deadline_ns;
    return wait_until<PollPrim>(work, {0, 1, 0, 1, 1}, [this](uint64_t*) { return ++polls < 0; });
  }

  Expired expired = {};
  Epoch epoch = {};
  Work work = {};
  int polls = 0;
};

// The clock is read once in kPollsPerLook polls, and the deadline counts from its first reading.
TEST_F(WaitsOfOneThread, LooksAtTheClockRarely) {
  EXPECT_FALSE(wait(35));
  EXPECT_EQ(PollPrim::looks, 5);  // at 10 it begins, at 50 it is over
  EXPECT_EQ(polls, 5 * kPollsPerLook);
  EXPECT_EQ(expired.set, 2u);
}

// However many threads wait, and however often they look at the clock.
TEST_F(WaitsOfOneThread, ReadsTheHostsWordOnceInATick) {
  constexpr uint64_t kTick = uint64_t{1} << kTickBits;
  PollPrim::now = 100 * kTick;
  PollPrim::step = kTick / 8;
  for (int thread = 0; thread < 4; ++thread) {
    epoch.aborted = 0;  // as if none had come to its deadline yet
    PollPrim::abort = 0;
    EXPECT_FALSE(wait(20 * kTick));
  }
  EXPECT_GT(PollPrim::looks, 4 * 160);
  EXPECT_NEAR(PollPrim::reads_of_the_host, 4 * 20, 8);
}

TEST_F(WaitsOfOneThread, AnAbortIsSeenInTheNextTickAndKnownToAll) {
  PollPrim::abort = 1;
  PollPrim::step = uint64_t{1} << (kTickBits - 2);
  EXPECT_FALSE(wait(uint64_t{1} << 40));
  EXPECT_EQ(expired.set, 0u);
  EXPECT_EQ(PollPrim::reads_of_the_host, 1);
  EXPECT_EQ(PollPrim::now >> kTickBits, 1u);
  EXPECT_FALSE(wait(uint64_t{1} << 40));  // another thread
  EXPECT_EQ(PollPrim::reads_of_the_host, 1);
  EXPECT_EQ(polls % kPollsPerLook, 0);
}

TEST_F(WaitsOfOneThread, WhoComesToItsDeadlineTellsTheOthers) {
  EXPECT_FALSE(wait(35));
  const int looks = PollPrim::looks;
  EXPECT_FALSE(wait(uint64_t{1} << 60));
  EXPECT_EQ(PollPrim::looks, looks + 1);
  EXPECT_EQ(PollPrim::reads_of_the_host, 0) << "within the tick in which the clock began";
}

}  // namespace
}  // namespace ringdp::gpu::testing
