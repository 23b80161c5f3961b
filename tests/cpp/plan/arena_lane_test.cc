#include "plan/arena_lane.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

Problem problem_with(int64_t slot_bytes) {
  Problem problem;
  problem.dtype = DType::kF64;
  problem.slot_bytes = slot_bytes;
  return problem;
}

TEST(ArenaLane, PiecesAreWholeCacheLinesOfTheSlot) {
  Builder builder("test", problem_with(1000));
  const ArenaLane lane(builder, problem_with(1000), 0, 3, 4);
  EXPECT_EQ(lane.slot_elements(), 1000 / 8);
  EXPECT_EQ(lane.piece_elements(), 1000 / 4 / 64 * 64 / 8);
  const Ref last = lane.piece(2, 5, 3, lane.piece_elements());
  EXPECT_EQ(last.index, 2);
  EXPECT_EQ(last.stage, 5);
  EXPECT_EQ(last.offset % 64, 0);
  EXPECT_LE(last.offset + last.count * 8, 1000);
}

TEST(ArenaLane, OwnMemoryTakesItsPlaceInRankOrder) {
  Builder builder("test", problem_with(1024));
  const ArenaLane lane(builder, problem_with(1024), 1, 3, 3);
  const Ref own = builder.input(0, {4, 8});
  const std::vector<Ref> refs = lane.in_rank_order(own, 0, 2);
  ASSERT_EQ(refs.size(), 3u);
  EXPECT_EQ(refs[1].space, Space::kInput);
  for (const int member : {0, 2}) {
    EXPECT_EQ(refs[member].space, Space::kSlot);
    EXPECT_EQ(refs[member].index, member);
    EXPECT_EQ(refs[member].count, own.count);
  }
}

TEST(ArenaLane, KnowsWhetherItPassedABarrier) {
  Builder builder("test", problem_with(1024));
  ArenaLane lane(builder, problem_with(1024), 0, 2, 2);
  EXPECT_FALSE(lane.has_barrier());
  lane.barrier();
  EXPECT_TRUE(lane.has_barrier());
}

TEST(ArenaLane, ASlotTooSmallForTheRanksIsRefused) {
  const Problem problem = problem_with(64 * 11 - 1);
  Builder builder("test", problem);
  try {
    ArenaLane(builder, problem, 0, 11, 11);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("slot_bytes=703"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ringdp::plan
