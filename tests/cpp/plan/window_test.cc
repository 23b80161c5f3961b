#include "plan/window.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

TEST(Window, SlotsAreDisjointAndTakeTurns) {
  Builder builder("test", Problem{});
  Window window(builder, 3, 100);
  const int64_t first = window.take().offset, second = window.take().offset, third = window.take().offset;
  EXPECT_GE(second, first + 100);
  EXPECT_GE(third, second + 100);
  EXPECT_EQ(window.take().offset, first);
  EXPECT_GE(builder.finish().scratch_bytes, third + 100);
}

TEST(Window, ASlotIsFreeAfterItsLastReaderOnly) {
  Builder builder("test", Problem{});
  Window window(builder, 2, 8);
  const Window::Slot slot = window.take();
  EXPECT_TRUE(slot.free.empty());
  EXPECT_TRUE(window.take().free.empty());
  window.release_after(slot.index, {7, 42});
  const Window::Slot again = window.take();
  EXPECT_EQ(again.index, slot.index);
  ASSERT_EQ(again.free.size(), 1u);
  EXPECT_EQ(again.free[0].lane, 7);
  EXPECT_EQ(again.free[0].steps, 42);
}

}  // namespace
}  // namespace ringdp::plan
