// Who is waited for, and the end of waiting, over flags that are written in every order.
#include "gpu/stream_flags.h"

#include <gtest/gtest.h>

#include <memory>

namespace ringdp::gpu {
namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

DeviceStep await(int peer, int slot, int value) {
  DeviceStep step;
  step.verb = DeviceVerb::kAwait;
  step.peer = static_cast<int8_t>(peer);
  step.slot = static_cast<uint8_t>(slot);
  step.value = static_cast<uint16_t>(value);
  return step;
}

struct Launch {
  Work work{};
  std::unique_ptr<Flags> flags = std::make_unique<Flags>();

  Launch() {
    work.rank = 1;
    work.world = 4;
    work.stream_epoch = 5;
    work.step[0].verb = DeviceVerb::kPost;
    work.step[1] = await(0, plan::kEntrySlot, 1);
    work.step[2].verb = DeviceVerb::kSum;
    work.step[3] = await(3, plan::kExitSlot, 2);
    work.steps = 4;
  }
  void write(int step, uint64_t epoch, uint64_t value) {
    const DeviceStep& s = work.step[step];
    flags->of[s.slot][0][s.peer].value = epoch * kValuesPerEpoch + value;
  }
};

TEST(StreamFlags, TheFirstWaitThatHasNotComeIsNamed) {
  Launch launch;
  auto waited = waited_for(launch.work, *launch.flags);
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->peer, 0);
  EXPECT_EQ(waited->step, 1);
  EXPECT_EQ(waited->wanted, 5 * kValuesPerEpoch + 1);
  EXPECT_EQ(waited->seen, 0u);
  launch.write(1, 5, 1);
  waited = waited_for(launch.work, *launch.flags);
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->peer, 3);
  EXPECT_EQ(waited->slot, plan::kExitSlot);
  launch.write(3, 5, 2);
  EXPECT_FALSE(waited_for(launch.work, *launch.flags));
}

TEST(StreamFlags, AnEarlierLaunchOrAnEarlierValueIsNotEnough) {
  Launch launch;
  launch.write(1, 4, 1);
  EXPECT_EQ(waited_for(launch.work, *launch.flags)->peer, 0);
  launch.write(1, 6, 1);
  launch.write(3, 5, 1);
  EXPECT_EQ(waited_for(launch.work, *launch.flags)->peer, 3);
}

TEST(StreamFlags, ReleasedIsReleasedForGood) {
  Launch launch;
  release_waits(*launch.flags);
  EXPECT_FALSE(waited_for(launch.work, *launch.flags));
  launch.work.stream_epoch = uint64_t{1} << 50;
  EXPECT_FALSE(waited_for(launch.work, *launch.flags));
}

// cuStreamWaitValue64 with GEQ: the difference as a signed number.
TEST(StreamFlags, TheDevicesCyclicCompareAgrees) {
  Launch launch;
  release_waits(*launch.flags);
  for (const uint64_t epoch : {uint64_t{1}, uint64_t{5}, uint64_t{1} << 50}) {
    const uint64_t wanted = epoch * kValuesPerEpoch + 1;
    EXPECT_GE(static_cast<int64_t>(launch.flags->of[0][0][0].value - wanted), 0) << epoch;
  }
}

}  // namespace
}  // namespace ringdp::gpu
