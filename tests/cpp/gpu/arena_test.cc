// The parts of a rank's device memory lie apart, and what cannot be had leaves nothing behind.
#include "gpu/arena.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "gpu/host_functions.h"

namespace ringdp::gpu {
namespace {

using testing::devices;

TEST(Arena, PartsFollowOneAnotherAndAreAligned) {
  for (const int world : {1, 2, 8}) {
    for (const int64_t window : {int64_t{1} << 20, (int64_t{1} << 20) + 1, int64_t{1} << 30}) {
      const ArenaLayout layout = ArenaLayout::of(window, world);
      EXPECT_GE(layout.window, window);
      EXPECT_EQ(layout.stage, layout.window);
      EXPECT_EQ(layout.pushed, layout.stage + layout.stage_bytes);
      EXPECT_EQ(layout.flags, layout.pushed + 2 * world * layout.pushed_bytes) << "two parities, a part per writer";
      EXPECT_EQ(layout.epoch, layout.flags + static_cast<int64_t>(sizeof(Flags)));
      EXPECT_GE(layout.bytes, layout.epoch + static_cast<int64_t>(sizeof(Epoch)));
      for (const int64_t place : {layout.stage, layout.pushed, layout.pushed_bytes, layout.flags, layout.epoch}) {
        EXPECT_EQ(place % 128, 0);
      }
    }
  }
}

TEST(Arena, TakesAndGivesBack) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  {
    const Arena arena(functions, 0, ArenaLayout::of(1 << 20, 2), RD_GPU_SHARE_FD);
    EXPECT_EQ(arena.signals().abort, 0u);
    EXPECT_EQ(arena.abort_on_device(), &arena.signals().abort) << "these devices see the host's addresses";
    UniqueFd fd;
    EXPECT_EQ(arena.handle(&fd).needs_fd, 1);
    EXPECT_TRUE(fd);
    EXPECT_FALSE(devices.all_is_given_back());
  }
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Arena, WithoutMemoryThereIsNothing) {
  const Functions functions = testing::host_functions();
  for (const char* const failing : {"alloc", "host_alloc"}) {
    testing::reset_devices();
    devices.fails = failing;
    EXPECT_THROW(Arena(functions, 0, ArenaLayout::of(1 << 20, 2), RD_GPU_SHARE_AUTO), Error) << failing;
    EXPECT_TRUE(devices.all_is_given_back()) << failing;
  }
}

}  // namespace
}  // namespace ringdp::gpu
