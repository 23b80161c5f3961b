#include "plan/ring.h"

#include <gtest/gtest.h>

#include "harness.h"
#include "plan/pipeline.h"

namespace ringdp::plan::testing {
namespace {

class RingEverything : public ::testing::TestWithParam<Collective> {};

TEST_P(RingEverything, EqualsTheSerialOracle) { check_everything(AlgorithmChoice::kRing, Order::kRank, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Collectives, RingEverything,
                         ::testing::Values(Collective::kBroadcast, Collective::kAllGather, Collective::kReduce));

Case ring_case(Collective what, int world) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = 1000;
  c.problem.segment_bytes = 400;
  return c;
}

TEST(Ring, AllGatherSendsEveryPartButOneOnce) {
  for (int world = 2; world <= 9; ++world) {
    const std::vector<Plan> plans = plans_of(ring_case(Collective::kAllGather, world));
    EXPECT_EQ(rounds_of(plans), world - 1);
    for (const Plan& plan : plans) EXPECT_EQ(collective::totals(plan).bytes_sent, (world - 1) * 4000) << world;
  }
}

TEST(Ring, AllGatherTalksToTheNeighbours) {
  for (const Plan& plan : plans_of(ring_case(Collective::kAllGather, 5))) {
    for (const Channel& channel : plan.channels) {
      for (const Step& step : channel.steps) {
        if (step.verb != Verb::kSend && step.verb != Verb::kRecv) continue;
        EXPECT_EQ(step.peer, (plan.rank + (step.verb == Verb::kSend ? 1 : 4)) % 5);
      }
    }
  }
}

// What is sent after the first round is what was received in the round before, and waits for just that.
TEST(Ring, AllGatherForwardsWhatItReceivedLast) {
  const size_t world = 5, segments = 10;
  const Plan plan = plans_of(ring_case(Collective::kAllGather, world))[2];
  const int send = 0, recv = 1;
  const std::vector<Step>&sends = plan.channels[send].steps, &recvs = plan.channels[recv].steps;
  ASSERT_EQ(sends.size(), segments * (world - 1));
  ASSERT_EQ(recvs.size(), sends.size());
  EXPECT_EQ(sends[0].srcs[0].space, Space::kInput);
  EXPECT_EQ(sends[0].round, 0);
  for (size_t i = segments; i < sends.size(); ++i) {
    EXPECT_EQ(sends[i].srcs[0].index, recvs[i - segments].dsts[0].index);
    EXPECT_EQ(sends[i].srcs[0].offset, recvs[i - segments].dsts[0].offset);
    ASSERT_EQ(sends[i].after.size(), 1u);
    EXPECT_EQ(sends[i].after[0].channel, recv);
    EXPECT_EQ(sends[i].after[0].steps, static_cast<int32_t>(i - segments + 1));
  }
}

TEST(Ring, AllGatherLeavesOutEmptyParts) {
  Case c = ring_case(Collective::kAllGather, 3);
  c.problem.counts = {0, 1000, 10};
  const std::vector<Plan> plans = plans_of(c);
  for (int r = 0; r < 3; ++r) {
    const int64_t not_sent = c.problem.counts[(r + 1) % 3];  // the next rank's own
    EXPECT_EQ(collective::totals(plans[r]).bytes_sent, 4 * (1010 - not_sent)) << r;
  }
}

TEST(Ring, BroadcastIsAPipelinedChain) {
  const int64_t segments = 10;
  for (int world = 2; world <= 9; ++world) {
    Case c = ring_case(Collective::kBroadcast, world);
    c.problem.root = world - 1;
    const std::vector<Plan> plans = plans_of(c);
    EXPECT_EQ(rounds_of(plans), segments + world - 2) << world;
    for (int r = 0; r < world; ++r) {
      const bool end_of_chain = r == world - 2;
      EXPECT_EQ(collective::totals(plans[r]).bytes_sent, end_of_chain ? 0 : 4000) << world << " rank " << r;
    }
  }
}

TEST(Ring, RootedCollectivesHaveOneSchedule) {
  for (const Collective what : {Collective::kReduce, Collective::kBroadcast}) {
    Case c = ring_case(what, 4);
    const std::string in_rank_order = collective::to_json(plans_of(c)[1]);
    c.order = Order::kRotated;
    EXPECT_EQ(collective::to_json(plans_of(c)[1]), in_rank_order) << name_of(what);
    check(c);
  }
}

TEST(Ring, WithoutARingFormThePlanIsDirect) {
  for (const Collective what : {Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    Case c = ring_case(what, 4);
    const std::string ring = collective::to_json(plans_of(c)[1]);
    c.algorithm = AlgorithmChoice::kDirect;
    EXPECT_EQ(collective::to_json(plans_of(c)[1]), ring) << name_of(what);
  }
}

TEST(Ring, OrderPicksTheSchedule) {
  Case c = ring_case(Collective::kAllReduce, 4);
  EXPECT_EQ(plans_of(c)[0].algorithm, "ring");
  c.order = Order::kRotated;
  EXPECT_EQ(plans_of(c)[0].algorithm, "ring/rotated");
}

// ---- sums in both orders

Case sum_case(Order order, int world, DType dtype, int64_t count, int64_t segment_bytes) {
  Case c = ring_case(Collective::kAllReduce, world);
  c.order = order;
  c.problem.dtype = dtype;
  c.problem.count = count;
  c.problem.segment_bytes = segment_bytes;
  return c;
}

class RingSums : public ::testing::TestWithParam<Order> {};

TEST_P(RingSums, AllReduceEqualsTheOracleOfItsOrder) {
  check_everything(AlgorithmChoice::kRing, GetParam(), Collective::kAllReduce);
}

TEST_P(RingSums, ReduceScatterEqualsTheOracleOfItsOrder) {
  check_everything(AlgorithmChoice::kRing, GetParam(), Collective::kReduceScatter);
}

TEST_P(RingSums, ScratchIsBoundedWhateverTheCount) {
  const int64_t one_segment = 400;
  const auto scratch = [](DType dtype, int64_t count) {
    return plans_of(sum_case(GetParam(), 4, dtype, count, one_segment))[1].scratch_bytes;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_GT(scratch(dtype, 10'000), 0);
    EXPECT_EQ(scratch(dtype, 10'000), scratch(dtype, 100'000));
  }
  const int64_t slots = GetParam() == Order::kRank ? 2 * kWindow : 3 * kWindow;
  EXPECT_LE(scratch(DType::kF32, 10'000), slots * align_up(one_segment, 64));
}

INSTANTIATE_TEST_SUITE_P(Orders, RingSums, ::testing::Values(Order::kRank, Order::kRotated));

TEST(RingRank, TakesAsManyRoundsAsThePipelineIsLong) {
  for (int world = 2; world <= 9; ++world) {
    for (const int64_t segments : {1, 2, 17}) {
      int64_t rounds = 0;
      for (const Plan& plan : plans_of(sum_case(Order::kRank, world, DType::kF32, segments * 100, 400))) {
        rounds = std::max(rounds, collective::totals(plan).rounds);
      }
      EXPECT_EQ(rounds, 2 * (world - 1) + segments - 1) << world << " ranks, " << segments << " segments";
    }
  }
}

// Prefix hops in the tensor's type from rank 0 and wide from the others; results once round, except to their origin.
TEST(RingRank, SendsTheTextbookBytes) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16, DType::kF16}) {
      const Case c = sum_case(Order::kRank, world, dtype, 1000, 100 * size_of(dtype));
      const int64_t raw = 1000 * size_of(dtype), wide = 1000 * size_of(wide_of(dtype));
      for (const Plan& plan : plans_of(c)) {
        const int r = plan.rank;
        const int64_t prefix = r == world - 1 ? 0 : r == 0 ? raw : wide;
        const int64_t result = r == world - 1 || r < world - 2 ? raw : 0;
        const int64_t sent = collective::totals(plan).bytes_sent;
        EXPECT_EQ(sent, prefix + result) << text_of(c) << " rank " << r;
        EXPECT_LE(sent, (wide > raw ? 3 : 2) * raw) << text_of(c);
        EXPECT_TRUE(world > 2 || sent == raw) << text_of(c);
      }
    }
  }
}

// The prefix hops once past everyone; the result goes last -> 0 -> ... -> root.
TEST(RingRank, ReduceSendsTheResultOnlyAsFarAsTheRoot) {
  for (int world = 2; world <= 9; ++world) {
    for (int root = 0; root < world; ++root) {
      Case c = sum_case(Order::kRank, world, DType::kF32, 1000, 400);
      c.problem.what = Collective::kReduce;
      c.problem.root = root;
      for (const Plan& plan : plans_of(c)) {
        const bool last = plan.rank == world - 1;
        const bool passes_result = last ? root != world - 1 : root != world - 1 && plan.rank < root;
        EXPECT_EQ(collective::totals(plan).bytes_sent, 4000 * (!last + passes_result)) << text_of(c) << plan.rank;
      }
    }
  }
}

TEST(RingRotated, SendsTheTextbookBytesInTheTextbookRounds) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16, DType::kF16}) {
      const Case c = sum_case(Order::kRotated, world, dtype, 300 * world, 128);
      const int64_t chunk = 300 * size_of(dtype);
      const int64_t chunks = (wide_of(dtype) == dtype ? 2 : 3) * (world - 1);
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        EXPECT_EQ(sums.bytes_sent, chunks * chunk) << text_of(c);
        EXPECT_EQ(sums.bytes_received, chunks * chunk) << text_of(c);
        EXPECT_EQ(sums.rounds, 2 * (world - 1)) << text_of(c);
      }
    }
  }
}

// The walkthrough: 4 ranks, 4 floats, chunk c of rank r is (r+1)*10+c. Chunks a, b, c, d are elements 0..3.
class Walkthrough : public ::testing::Test {
 protected:
  Walkthrough() : plans_(plans_of(example())) {
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 4; ++c) store(tensors_[r].data(), c, DType::kF32, (r + 1) * 10 + c);
    }
  }
  static Case example() { return sum_case(Order::kRotated, 4, DType::kF32, 4, 128); }

  // Keeps the steps of the first `rounds` rounds and runs them in place on the tensors.
  void run_rounds(int rounds) {
    for (Plan& plan : plans_) {
      for (Channel& channel : plan.channels) {
        if (channel.name == "fold") continue;
        while (!channel.steps.empty() && channel.steps.back().round >= rounds) channel.steps.pop_back();
      }
      // Folds follow their receives one to one in the first half.
      std::vector<Step>& folds = plan.channels[2].steps;
      folds.resize(std::min<size_t>(folds.size(), rounds));
    }
    Simulator simulator(4, 8, 64, 1);
    for (int r = 0; r < 4; ++r) {
      const Memory memory = {tensors_[r].data(), 16};
      simulator.add(r, {&plans_[r], {memory}, {memory}});
    }
    ASSERT_EQ(simulator.run(), "");
  }
  double element(int r, int c) const { return load(tensors_[r].data(), c, DType::kF32); }

  std::vector<Plan> plans_;
  std::vector<Bytes> tensors_{4, Bytes(16)};
};

TEST_F(Walkthrough, RankOwnsTheNextChunkAfterTheReduceScatter) {
  run_rounds(3);
  EXPECT_EQ(element(0, 1), 104);
  EXPECT_EQ(element(1, 2), 108);
  EXPECT_EQ(element(2, 3), 112);
  EXPECT_EQ(element(3, 0), 100);
}

TEST_F(Walkthrough, EveryRankHasTheSumsInTheEnd) {
  run_rounds(6);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) EXPECT_EQ(element(r, c), 100 + 4 * c) << "rank " << r;
  }
}

TEST_F(Walkthrough, TakesSixRoundsAndTwentyFourBytesPerRank) {
  for (const Plan& plan : plans_) {
    EXPECT_EQ(collective::totals(plan).rounds, 6);
    EXPECT_EQ(collective::totals(plan).bytes_sent, 24);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
