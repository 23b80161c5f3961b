// What only moves, and that it moves the same bytes when it is counted in another type.
#include "gpu/moves.h"

#include <gtest/gtest.h>

namespace ringdp::gpu {
namespace {

using plan::DeviceVerb;

Work with(DeviceVerb verb) {
  Work work{};
  work.steps = 2;
  work.step[0].verb = DeviceVerb::kAwait;
  work.step[1].verb = verb;
  work.step[1].count = 48;
  work.step[1].from.offset = 16;
  work.step[1].to.offset = 32;
  return work;
}

TEST(Moves, EveryVerbIsOneOrTheOther) {
  for (const DeviceVerb verb : {DeviceVerb::kPost, DeviceVerb::kAwait, DeviceVerb::kCopy, DeviceVerb::kPush}) {
    EXPECT_TRUE(only_moves(with(verb)));
  }
  for (const DeviceVerb verb : {DeviceVerb::kSum, DeviceVerb::kAdd, DeviceVerb::kSumPushed}) {
    EXPECT_FALSE(only_moves(with(verb)));
  }
  Work beyond = with(DeviceVerb::kSum);
  beyond.steps = 1;
  EXPECT_TRUE(only_moves(beyond));
}

TEST(Moves, TheBytesStayTheSame) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto element = static_cast<DType>(d);
    const Work before = with(DeviceVerb::kCopy);
    Work after = before;
    count_as_float32(after, element);
    const int64_t size = size_of(element);
    EXPECT_EQ(after.step[1].count * 4, before.step[1].count * size) << name_of(element);
    EXPECT_EQ(after.step[1].from.offset * 4, before.step[1].from.offset * size) << name_of(element);
    EXPECT_EQ(after.step[1].to.offset * 4, before.step[1].to.offset * size) << name_of(element);
  }
}

}  // namespace
}  // namespace ringdp::gpu
