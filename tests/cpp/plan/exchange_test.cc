#include "plan/exchange.h"

#include <gtest/gtest.h>

#include "harness.h"
#include "plan/pipeline.h"

namespace ringdp::plan::testing {
namespace {

TEST(Exchange, EqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kExchange, Order::kRank, Collective::kAllReduce);
}

Case exchange_case(int world, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kExchange;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.segment_bytes = 1024;
  return c;
}

TEST(Exchange, SendsTheTensorToEveryOtherRankInOneRound) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c = exchange_case(world, 1000);
      c.problem.dtype = dtype;
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, (world - 1) * c.problem.count * size_of(dtype)) << text_of(c);
        EXPECT_EQ(sums.bytes_received, sums.bytes_sent) << text_of(c);
        EXPECT_EQ(sums.rounds, 1) << text_of(c);
      }
    }
  }
}

int64_t most_sent(Case c, AlgorithmChoice algorithm) {
  c.algorithm = algorithm;
  int64_t most = 0;
  for (const Plan& plan : plans_of(c)) most = std::max(most, collective::totals(plan).bytes_sent);
  return most;
}

TEST(Exchange, BetweenTwoRanksItSendsNoMoreThanDirect) {
  for (const int64_t count : {2, 1000, 100'000}) {
    const Case c = exchange_case(2, count);
    EXPECT_EQ(most_sent(c, AlgorithmChoice::kExchange), most_sent(c, AlgorithmChoice::kDirect));
  }
  EXPECT_EQ(largest_exchange(2, 0), kAnySize);
}

TEST(Exchange, TheLargestSendsSoMuchMoreThanDirectAndNoLargerOne) {
  for (int world = 3; world <= 9; ++world) {
    for (const int64_t more : {10'000, 24 << 10, 1 << 20}) {
      const int64_t largest = largest_exchange(world, more) / 4 / world;  // whole elements of all slices
      for (const int64_t slice : {largest, largest + 1}) {
        const Case c = exchange_case(world, slice * world);
        const int64_t beyond = most_sent(c, AlgorithmChoice::kExchange) - most_sent(c, AlgorithmChoice::kDirect);
        EXPECT_EQ(beyond <= more, slice == largest) << text_of(c) << ": " << beyond;
      }
    }
    EXPECT_EQ(largest_exchange(world, 0), 0);
  }
  EXPECT_GT(largest_exchange(3, int64_t{1} << 40), int64_t{1} << 40) << "no overflow";
}

TEST(Exchange, ScratchIsPeersTimesWindowTimesSegment) {
  for (const int64_t count : {100'000, 1'000'000}) {
    EXPECT_EQ(plans_of(exchange_case(4, count))[1].scratch_bytes, 3 * kWindow * 1024) << count;
  }
  EXPECT_EQ(plans_of(exchange_case(4, 16))[1].scratch_bytes, 3 * 64) << "no more than the tensor needs";
}

TEST(Exchange, EveryRankStartsWithAnotherPeer) {
  const std::vector<Plan> plans = plans_of(exchange_case(5, 100));
  for (int r = 0; r < 5; ++r) EXPECT_EQ(plans[r].channels[0].steps[0].peer, (r + 1) % 5);
}

// Also where links hold nothing: then a rank is one window behind the others at most.
TEST(Exchange, ManySegmentsOverLinksThatHoldAlmostNothing) {
  for (const int world : {2, 4}) {
    for (const bool in_place : {false, true}) {
      Case c = exchange_case(world, 300);
      c.problem.segment_bytes = 64;
      c.link_bytes = 3;
      c.in_place = in_place;
      check(c);
    }
  }
}

TEST(Exchange, OtherCollectivesAreDirect) {
  for (int what = 0; what < kCollectiveCount; ++what) {
    Case c = exchange_case(4, 100);
    c.problem.what = static_cast<Collective>(what);
    const bool exchanged = c.problem.what == Collective::kAllReduce;
    EXPECT_EQ(plans_of(c)[1].algorithm, exchanged ? "exchange" : "direct") << name_of(c.problem.what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
