// How far apart ranks may be: the one-way trips after which a collective is over, the exchange of headers with it.
#include <gtest/gtest.h>

#include "collective/far_ranks.h"

namespace ringdp::collective {
namespace {

using plan::Collective;

plan::Problem small(Collective what) {
  plan::Problem problem;
  problem.what = what;
  problem.count = 100;
  return problem;
}

TEST(RoundTrips, AnAllReduceByExchangeIsOneWay) {
  for (int world = 2; world <= 8; ++world) {
    FarRanks ranks(world);
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kExchange, Order::kRank, small(Collective::kAllReduce)), 1);
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kDirect, Order::kRank, small(Collective::kAllReduce)), 2);
  }
}

// Of a large one, too: no segment waits for another one's way back.
TEST(RoundTrips, AnExchangeOfManySegmentsIsOneWay) {
  plan::Problem problem = small(Collective::kAllReduce);
  problem.count = 4096;
  problem.segment_bytes = 256;
  EXPECT_EQ(FarRanks(2).trips(AlgorithmChoice::kExchange, Order::kRank, problem), 1);
  EXPECT_EQ(FarRanks(4).trips(AlgorithmChoice::kExchange, Order::kTree, problem), 1);
}

TEST(RoundTrips, OfEveryCollectiveThatIsDirect) {
  FarRanks ranks(4);
  for (int what = 0; what < plan::kCollectiveCount; ++what) {
    const auto collective = static_cast<Collective>(what);
    const bool returns = collective == Collective::kAllReduce || collective == Collective::kReduce;
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kDirect, Order::kRank, small(collective)), returns ? 2 : 1)
        << plan::name_of(collective);
  }
}

// Headers add nothing to the rounds of a plan: they travel with its first bytes.
TEST(RoundTrips, AreTheRoundsOfThePlan) {
  using enum AlgorithmChoice;
  for (const auto algorithm : {kDirect, kExchange, kRing, kTree, kServer, kHalving}) {
    for (const int world : {2, 4, 8}) {
      FarRanks ranks(world);
      const Order order = algorithm == kHalving ? Order::kTree : Order::kRank;
      const int trips = ranks.trips(algorithm, order, small(Collective::kAllReduce));
      EXPECT_EQ(trips, ranks.rounds()) << plan::name_of(algorithm) << ", " << world << " ranks";
    }
  }
}

// Eight at a time, whose first halves do not wait for the second halves of others.
TEST(RoundTrips, CallsInFlightShareTheWay) {
  for (const int world : {2, 3, 5}) {
    FarRanks ranks(world, 8);
    for (const int calls : {1, 8}) {
      EXPECT_EQ(ranks.trips(AlgorithmChoice::kExchange, Order::kRank, small(Collective::kAllReduce), calls), 1);
    }
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kExchange, Order::kRank, small(Collective::kAllReduce), 16), 2);
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kDirect, Order::kRank, small(Collective::kAllReduce), 16), 4);
    EXPECT_EQ(ranks.trips(AlgorithmChoice::kDirect, Order::kRank, small(Collective::kAllGather), 16), 2);
  }
}

TEST(RoundTrips, CallsOneByOneAddUp) {
  EXPECT_EQ(FarRanks(2).trips(AlgorithmChoice::kExchange, Order::kRank, small(Collective::kAllReduce), 16), 16);
  EXPECT_EQ(FarRanks(2).trips(AlgorithmChoice::kDirect, Order::kRank, small(Collective::kAllReduce), 16), 32);
}

}  // namespace
}  // namespace ringdp::collective
