// The rank schedule of the ring: rank order, bytes and rounds.
#include <gtest/gtest.h>

#include "harness.h"
#include "plan/ring.h"

namespace ringdp::plan::testing {
namespace {

TEST(RingRank, AllReduceEqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kRing, Order::kRank, Collective::kAllReduce);
}

TEST(RingRank, ReduceScatterEqualsTheSerialOracle) {
  check_everything(AlgorithmChoice::kRing, Order::kRank, Collective::kReduceScatter);
}

Case ring_case(int world, DType dtype, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kRing;
  c.problem.world = world;
  c.problem.dtype = dtype;
  c.problem.count = count;
  c.problem.segment_bytes = 100 * size_of(dtype);
  return c;
}

TEST(RingRank, TakesAsManyRoundsAsThePipelineIsLong) {
  for (int world = 2; world <= 9; ++world) {
    for (const int64_t segments : {1, 2, 17}) {
      int64_t rounds = 0;
      for (const Plan& plan : plans_of(ring_case(world, DType::kF32, segments * 100))) {
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
      const Case c = ring_case(world, dtype, 1000);
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
      Case c = ring_case(world, DType::kF32, 1000);
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

TEST(RingRank, ScratchIsBoundedWhateverTheCount) {
  const int64_t one_segment = 400;
  for (const int64_t count : {10'000, 100'000}) {
    const Plan plan = plans_of(ring_case(4, DType::kF32, count))[1];
    EXPECT_LE(plan.scratch_bytes, 2 * 4 * align_up(one_segment, 64)) << count;
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
