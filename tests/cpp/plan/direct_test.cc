#include "plan/direct.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

class DirectEverything : public ::testing::TestWithParam<int> {};

TEST_P(DirectEverything, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kDirect, Order::kRank, static_cast<Collective>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Collectives, DirectEverything, ::testing::Range(0, kCollectiveCount));

TEST(Direct, SendsTheTextbookBytesInTwoRounds) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c;
      c.problem.dtype = dtype;
      c.problem.world = world;
      c.problem.count = 100 * world;
      c.problem.segment_bytes = 128;
      const int64_t tensor = c.problem.count * size_of(dtype);
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, 2 * (world - 1) * tensor / world) << text_of(c);
        EXPECT_EQ(sums.bytes_received, sums.bytes_sent) << text_of(c);
        EXPECT_EQ(sums.rounds, 2) << text_of(c);
      }
    }
  }
}

TEST(Direct, ScratchIsBoundedWhateverTheCount) {
  Case c;
  c.problem.world = 4;
  c.problem.segment_bytes = 1024;
  for (const int64_t count : {10'000, 100'000, 1'000'000}) {
    c.problem.count = count;
    EXPECT_EQ(plans_of(c)[1].scratch_bytes, 3 * 4 * 1024) << count;  // peers x window x segment
  }
}

TEST(Direct, EveryRankStartsWithAnotherPeer) {
  Case c;
  c.problem.world = 5;
  c.problem.count = 100;
  const std::vector<Plan> plans = plans_of(c);
  for (int r = 0; r < 5; ++r) EXPECT_EQ(plans[r].lanes[0].steps[0].peer, (r + 1) % 5);
}

}  // namespace
}  // namespace ringdp::plan::testing
