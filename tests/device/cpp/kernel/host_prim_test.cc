#include "device/cpp/kernel/host_prim.h"

#include <gtest/gtest.h>

namespace ringdp::gpu::testing {
namespace {

// Whether time passes for thread 2, which waits, while the others are where they were stopped.
bool runs(HostClock& clock) {
  const uint64_t before = clock.look(2);
  for (int look = 0; look < 3; ++look) clock.look(2);
  return clock.look(2) > before + 40'000'000;
}

TEST(HostClock, StandsWhileTheLastThreadOfABarrierIsStoppedOnItsWayIntoIt) {
  HostClock clock(3);
  for (const int thread : {0, 2}) clock.wake(thread);
  ClockedBarrier of_one(&clock, 0, 1), of_two(&clock, 0, 2);
  of_one.tell_clock(0);
  EXPECT_FALSE(runs(clock));
  clock.wake(1);
  for (const int last : {1, 0}) {
    of_two.tell_clock(1 - last);
    EXPECT_FALSE(runs(clock)) << "thread " << last << " has yet to arrive";
    of_two.tell_clock(last);
    EXPECT_FALSE(runs(clock)) << "thread " << last;
  }
  for (const int thread : {0, 1}) clock.sleep(thread);
  EXPECT_TRUE(runs(clock));
}

}  // namespace
}  // namespace ringdp::gpu::testing
