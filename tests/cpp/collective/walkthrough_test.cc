#include "collective/walkthrough.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringdp::collective {
namespace {

std::vector<std::vector<float>> tens(int ranks, int elements) {
  std::vector<std::vector<float>> inputs(ranks, std::vector<float>(elements));
  for (int r = 0; r < ranks; ++r) {
    for (int c = 0; c < elements; ++c) inputs[r][c] = static_cast<float>((r + 1) * 10 + c);
  }
  return inputs;
}

// The textbook's own arithmetic: after round s rank r holds the sum over ranks r-s-1..r of element (r-s-1) mod N.
TEST(Walkthrough, RotatedRingFollowsTheTextbookRoundByRound) {
  constexpr int kRanks = 4;
  const auto inputs = tens(kRanks, kRanks);
  const Walkthrough walk = walk_ring(inputs, Order::kRotated);
  int sums = 0;
  for (const RingEvent& e : walk.events) {
    if (e.kind == RingEvent::Kind::kCopy) continue;
    ++sums;
    const int chunk = ((e.rank - e.round - 1) % kRanks + kRanks) % kRanks;
    float expected = 0;
    for (int back = 0; back <= e.round + 1; ++back) expected += inputs[(e.rank - back + kRanks) % kRanks][chunk];
    EXPECT_EQ(e.begin, chunk);
    EXPECT_EQ(e.values, std::vector<float>{expected}) << "rank " << e.rank << " round " << e.round;
    if (e.kind == RingEvent::Kind::kFinalSum) {
      EXPECT_EQ(e.begin, (e.rank + 1) % kRanks);  // erratum E4
    }
  }
  EXPECT_EQ(sums, kRanks * (kRanks - 1));
  for (const auto& result : walk.results) EXPECT_EQ(result, (std::vector<float>{100, 104, 108, 112}));
  for (const auto& t : walk.totals) {
    EXPECT_EQ(t.rounds, 2u * (kRanks - 1));
    EXPECT_EQ(t.wire_bytes_sent, 24u);
  }
}

TEST(Walkthrough, BothOrdersGiveTheSumForAnySize) {
  for (const Order order : {Order::kRank, Order::kRotated}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int elements : {0, 1, ranks - 1, ranks + 1, 100}) {
        const auto inputs = tens(ranks, elements);
        const Walkthrough walk = walk_ring(inputs, order);
        for (const auto& result : walk.results) {
          for (int c = 0; c < elements; ++c) ASSERT_EQ(result[c], ranks * (ranks + 1) / 2 * 10 + ranks * c);
        }
      }
    }
  }
}

TEST(Walkthrough, RefusesUnequalInputs) {
  EXPECT_THROW(walk_ring({{1, 2}, {1}}, Order::kRank), Error);
  EXPECT_THROW(walk_ring({}, Order::kRank), Error);
}

}  // namespace
}  // namespace ringdp::collective
