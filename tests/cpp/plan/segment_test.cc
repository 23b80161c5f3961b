#include "plan/segment.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

TEST(Segment, HoldsWhatFitsInTheSegmentBytes) {
  EXPECT_EQ(segment_elements(1'000'000, DType::kF32, 4096), 1024);
  EXPECT_EQ(segment_elements(1'000'000, DType::kBF16, 4096), 2048);
  EXPECT_EQ(segment_elements(1'000'000, DType::kF64, 4095), 511);
}

TEST(Segment, HoldsAtLeastOneElement) {
  EXPECT_EQ(segment_elements(10, DType::kF64, 1), 1);
  EXPECT_EQ(segment_elements(0, DType::kF64, 1), 1);
  EXPECT_EQ(segment_elements(10, DType::kF64, 1, 0), 10) << "no segments left: one for all";
}

TEST(Segment, GrowsWhenThereWouldBeTooMany) {
  for (const int64_t count : {int64_t{4096}, int64_t{4097}, int64_t{1} << 31, (int64_t{1} << 40) + 7}) {
    const int64_t elements = segment_elements(count, DType::kU8, 1);
    EXPECT_LE(ceil_div(count, elements), kMaxSegments) << count;
    EXPECT_GT(ceil_div(count, std::max<int64_t>(elements - 1, 1)), kMaxSegments - 1) << "larger than needed: " << count;
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

}  // namespace
}  // namespace ringdp::plan
