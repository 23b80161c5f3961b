// Plans on links as rounds: both ends of a message meet, results are the oracle's, too long pipelines are refused.
#include "device/plan/link_rounds.h"

#include <gtest/gtest.h>

#include "device/cpp/plan/link_rounds_case.h"

namespace ringdp::plan::testing {
namespace {

Case ring_case(int world, int64_t count, Order order, int64_t segment_bytes) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.order = order;
  c.problem.world = world;
  c.problem.dtype = DType::kBF16;
  c.problem.count = count;
  c.problem.segment_bytes = segment_bytes;
  return c;
}

TEST(LinkRounds, ThePipelinedRingKeepsItsRounds) {
  for (const int64_t segment_bytes : {16, 64, 1000}) {
    const Case c = ring_case(4, 100, Order::kRank, segment_bytes);
    const std::vector<Plan> plans = plans_of(c);
    check_ends_meet(c, plans);
    check_rounds(c, plans);
    EXPECT_EQ(static_cast<int64_t>(rounds_of(plans[3]).size()), collective::totals(plans[3]).rounds);
  }
}

TEST(LinkRounds, APipelineBeyondItsWindowIsRefused) {
  const Plan plan = plans_of(ring_case(3, 1000, Order::kRotated, 16))[0];
  EXPECT_THROW(
      {
        try {
          rounds_of(plan);
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("use larger segments"), std::string::npos) << error.what();
          throw;
        }
      },
      Error);
}

TEST(LinkRounds, WhatMeetsInMemoryIsRefused) {
  Case c = ring_case(2, 8, Order::kRank, 64);
  c.algorithm = AlgorithmChoice::kArena;
  EXPECT_THROW(rounds_of(plans_of(c)[0]), Error);
}

Case encoded_case(int64_t segment_bytes) {
  Case c;
  c.problem.world = 2;
  c.problem.count = 1000;
  c.problem.wire = WireType::kFp8;
  c.problem.segment_bytes = segment_bytes;
  c.link_bytes = 50;
  return c;
}

TEST(LinkRounds, WhatIsSentEncodedIsEncodedAhead) {
  const Case c = encoded_case(1 << 20);
  const std::vector<Plan> plans = plans_of(c);
  check_ends_meet(c, plans);
  check_rounds(c, plans);
  EXPECT_EQ(text_of(plans[1], rounds_of(plans[1])),
            "round 0: encode 512; encode 488; decode 488; send 520 B to 0, receive 496 B from 0; "
            "decode 488; fold 2 x 488; encode 488; decode 488\n"
            "round 1: receive 520 B from 0, send 496 B to 0; decode 512\n");
}

// Its second segment would be encoded when the round that sends it has begun.
TEST(LinkRounds, EncodingBetweenMessagesOfARoundIsRefused) {
  EXPECT_THROW(rounds_of(plans_of(encoded_case(1024))[0]), Error);
}

TEST(LinkRounds, StepsThatWaitInACircleAreRefused) {
  Plan plan = plans_of(ring_case(2, 8, Order::kRank, 64))[0];
  std::vector<Step>& steps = plan.channels[0].steps;
  steps[0].after = {{0, static_cast<int32_t>(steps.size())}};
  try {
    rounds_of(plan);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("steps of channel 0 wait in a circle"), std::string::npos) << error.what();
  }
}

// Without the order of rounds the same plan reads what has not come: the check of results can fail.
TEST(LinkRounds, AFoldAheadOfItsMessageShows) {
  const Case c = ring_case(2, 64, Order::kRank, 1000);
  std::vector<Plan> plans = plans_of(c);
  std::vector<LinkRound> rounds = rounds_of(plans[1]);
  ASSERT_FALSE(rounds[0].steps.empty());
  rounds.insert(rounds.begin(), LinkRound{{}, rounds[0].steps});
  rounds[1].steps.clear();
  plans = {plan_of_rounds(plans[0], rounds_of(plans[0])), plan_of_rounds(plans[1], rounds)};
  std::vector<Tensors> start = {Tensors(c, 0), Tensors(c, 1)}, tensors = start;
  Simulator simulator(2, 64, 64, 1);
  for (int r = 0; r < 2; ++r) simulator.add(r, tensors[static_cast<size_t>(r)].job(plans[static_cast<size_t>(r)]));
  ASSERT_EQ(simulator.run(), "");
  EXPECT_FALSE(tensors[1].result(0) == expected(c, start, 1)[0]);
}

TEST(LinkRounds, AreTold) {
  const Plan plan = plans_of(ring_case(2, 8, Order::kRank, 64))[1];
  EXPECT_EQ(text_of(plan, rounds_of(plan)),
            "round 0: receive 16 B from 0; fold 2 x 8\n"
            "round 1: send 16 B to 0\n");
}

}  // namespace
}  // namespace ringdp::plan::testing
