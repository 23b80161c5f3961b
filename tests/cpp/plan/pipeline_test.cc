#include "plan/pipeline.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

int64_t elements_of(int64_t count, DType dtype, int64_t segment_bytes, int64_t pipelines = 1) {
  Problem problem;
  problem.dtype = dtype;
  problem.segment_bytes = segment_bytes;
  return segment_elements(problem, count, pipelines);
}

TEST(Segment, HoldsWhatFitsInTheSegmentBytes) {
  EXPECT_EQ(elements_of(1'000'000, DType::kF32, 4096), 1024);
  EXPECT_EQ(elements_of(1'000'000, DType::kBF16, 4096), 2048);
  EXPECT_EQ(elements_of(1'000'000, DType::kF64, 4095), 511);
}

TEST(Segment, HoldsAtLeastOneElement) {
  EXPECT_EQ(elements_of(10, DType::kF64, 1), 1);
  EXPECT_EQ(elements_of(0, DType::kF64, 1), 1);
  EXPECT_EQ(elements_of(10, DType::kF64, 1, 5000), 10) << "no segments left: one for all";
}

TEST(Segment, GrowsWhenThereWouldBeTooMany) {
  const int64_t most = Problem{}.most_segments;
  for (const int64_t count : {int64_t{4096}, int64_t{4097}, int64_t{1} << 31, (int64_t{1} << 40) + 7}) {
    const int64_t elements = elements_of(count, DType::kU8, 1);
    EXPECT_LE(ceil_div(count, elements), most) << count;
    EXPECT_GT(ceil_div(count, std::max<int64_t>(elements - 1, 1)), most - 1) << "larger than needed: " << count;
  }
}

TEST(Segment, IsWholePacksInKernels) {
  Problem problem;
  problem.dtype = DType::kBF16;
  problem.on_device = true;
  problem.most_segments = 3;
  for (const int64_t segment_bytes : {1, 16, 47, 48}) {
    problem.segment_bytes = segment_bytes;
    EXPECT_EQ(segment_elements(problem, 24), segment_bytes < 48 ? segment_bytes < 32 ? 8 : 16 : 24) << segment_bytes;
    EXPECT_EQ(segment_elements(problem, 240) % 8, 0);
    EXPECT_LE(ceil_div(int64_t{240}, segment_elements(problem, 240)), 3);
  }
}

TEST(Segment, SegmentsTileTheWhole) {
  for (const int64_t count : {0, 1, 7, 64, 65}) {
    const Extent whole = {11, 11 + count};
    int64_t at = whole.begin;
    for (int64_t k = 0; k < ceil_div(count, int64_t{8}); ++k) {
      const Extent part = segment(whole, 8, k);
      EXPECT_EQ(part.begin, at);
      EXPECT_GT(part.count(), 0);
      at = part.end;
    }
    EXPECT_EQ(at, whole.end);
    EXPECT_EQ(segment(whole, 8, 9).count(), 0) << "beyond the end";
  }
}

TEST(Segment, TheLongestOfSeveralExtents) {
  EXPECT_EQ(longest({}), 0);
  EXPECT_EQ(longest({{0, 3}, {3, 10}, {10, 12}}), 7);
}

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
  EXPECT_EQ(again.free[0].channel, 7);
  EXPECT_EQ(again.free[0].steps, 42);
}

}  // namespace
}  // namespace ringdp::plan
