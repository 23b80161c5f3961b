#include "plan/ring_gather.h"

#include <gtest/gtest.h>

namespace ringdp::plan {
namespace {

Problem ring_problem(int rank, int world) {
  Problem problem;
  problem.rank = rank;
  problem.world = world;
  return problem;
}

TEST(RingGather, NeighboursCloseTheRing) {
  for (int r = 0; r < 5; ++r) {
    const Problem problem = ring_problem(r, 5);
    Builder builder("ring", problem);
    const RingLanes lanes(builder, problem);
    EXPECT_EQ(lanes.next, (r + 1) % 5);
    EXPECT_EQ((lanes.previous + 1) % 5, r);
  }
}

// What is sent after the first round is what was received in the round before, and waits for just that.
TEST(RingGather, ForwardsWhatItReceivedLast) {
  const int world = 5;
  const Problem problem = ring_problem(2, world);
  Builder builder("ring", problem);
  const RingLanes lanes(builder, problem);
  RingGather gather;
  gather.first = 3;
  gather.base_round = 4;
  gather.segments = 2;
  gather.own = gather.ref = [&](int chunk, int64_t k) { return builder.output(chunk, {k * 8, (k + 1) * 8}); };
  gather_round_the_ring(builder, lanes, world, gather);
  const Plan plan = builder.finish();
  const std::vector<Step>&sends = plan.lanes[lanes.send].steps, &recvs = plan.lanes[lanes.recv].steps;
  ASSERT_EQ(sends.size(), 2u * (world - 1));
  ASSERT_EQ(recvs.size(), sends.size());
  EXPECT_EQ(sends[0].srcs[0].index, gather.first);
  EXPECT_EQ(sends[0].round, gather.base_round);
  for (size_t i = 2; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].srcs[0].index, recvs[i - 2].dsts[0].index);
    EXPECT_EQ(sends[i].srcs[0].offset, recvs[i - 2].dsts[0].offset);
    ASSERT_EQ(sends[i].after.size(), 1u);
    EXPECT_EQ(sends[i].after[0].lane, lanes.recv);
    EXPECT_EQ(sends[i].after[0].steps, static_cast<int32_t>(i - 2 + 1));
  }
}

}  // namespace
}  // namespace ringdp::plan
