// The rotated schedule of the ring: the textbook's order, bytes, rounds and worked example.
#include <gtest/gtest.h>

#include "harness.h"
#include "plan/ring.h"

namespace ringdp::plan::testing {
namespace {

TEST(RingRotated, AllReduceEqualsTheOracleOfItsOrder) {
  check_everything(AlgorithmChoice::kRing, Order::kRotated, Collective::kAllReduce);
}

TEST(RingRotated, ReduceScatterEqualsTheOracleOfItsOrder) {
  check_everything(AlgorithmChoice::kRing, Order::kRotated, Collective::kReduceScatter);
}

Case rotated_case(int world, DType dtype, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.order = Order::kRotated;
  c.problem.world = world;
  c.problem.dtype = dtype;
  c.problem.count = count;
  c.problem.segment_bytes = 128;
  return c;
}

TEST(RingRotated, SendsTheTextbookBytesInTheTextbookRounds) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16, DType::kF16}) {
      const Case c = rotated_case(world, dtype, 300 * world);
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

TEST(RingRotated, ScratchIsBoundedWhateverTheCount) {
  const Plan small = plans_of(rotated_case(4, DType::kBF16, 10'000))[0];
  const Plan large = plans_of(rotated_case(4, DType::kBF16, 100'000))[0];
  EXPECT_GT(small.scratch_bytes, 0);
  EXPECT_EQ(small.scratch_bytes, large.scratch_bytes);
}

// The walkthrough: 4 ranks, 4 floats, chunk c of rank r is (r+1)*10+c. Chunks a, b, c, d are elements 0..3.
class Walkthrough : public ::testing::Test {
 protected:
  Walkthrough() : plans_(plans_of(example())) {
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 4; ++c) store(tensors_[r].data(), c, DType::kF32, (r + 1) * 10 + c);
    }
  }
  static Case example() { return rotated_case(4, DType::kF32, 4); }

  // Keeps the steps of the first `rounds` rounds and runs them in place on the tensors.
  void run_rounds(int rounds) {
    for (Plan& plan : plans_) {
      for (Lane& lane : plan.lanes) {
        if (lane.name == "fold") continue;
        while (!lane.steps.empty() && lane.steps.back().round >= rounds) lane.steps.pop_back();
      }
      // Folds follow their receives one to one in the first half.
      std::vector<Step>& folds = plan.lanes[2].steps;
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
