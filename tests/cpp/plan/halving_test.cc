#include "plan/halving.h"

#include <gtest/gtest.h>

#include "harness.h"
#include "plan/pipeline.h"

namespace ringdp::plan::testing {
namespace {

TEST(Halving, EqualsTheOracleOfTheBalancedTree) {
  check_everything(AlgorithmChoice::kHalving, Order::kTree, Collective::kAllReduce);
}

// Chunks of 128 elements.
Case halving_case(int world, int64_t chunks) {
  Case c;
  c.algorithm = AlgorithmChoice::kHalving;
  c.order = Order::kTree;
  c.problem.world = world;
  c.problem.segment_bytes = 4 * 128 / std::max(1, world / 4);
  c.problem.slot_bytes = 640;
  c.problem.count = 128 * chunks;
  return c;
}

TEST(Halving, OfManyRanksAndOddChunks) {
  for (const int world : {16, 32}) {
    for (const int64_t count : {1, 100, 2345}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Case c = halving_case(world, 0);
        c.problem.count = count;
        c.problem.dtype = dtype;
        c.in_place = count == 100;
        c.link_bytes = 24;
        check(c);
      }
    }
  }
}

TEST(Halving, EachChunkTakesTwoMessagesPerLevel) {
  for (int levels = 1; levels <= 5; ++levels) {
    for (const int64_t chunks : {1, 7}) {
      for (const Plan& plan : plans_of(halving_case(1 << levels, chunks))) {
        int64_t messages = 0;
        for (const Channel& channel : plan.channels) {
          for (const Step& step : channel.steps) messages += step.verb == Verb::kSend;
        }
        EXPECT_EQ(messages, 2 * levels * chunks);
        EXPECT_EQ(collective::totals(plan).rounds, 2 * levels + chunks - 1);
      }
    }
  }
}

// 2(N-1)/N of the tensor. Partial sums of 16-bit floats are wide: of the first exchange's half they are none, of what
// follows twice as much.
TEST(Halving, SendsAsMuchAsDirectButForPartialSumsOfHalfPrecision) {
  for (int levels = 1; levels <= 5; ++levels) {
    const int64_t world = 1 << levels;
    Case c = halving_case(static_cast<int>(world), 3);
    for (const Plan& plan : plans_of(c)) {
      EXPECT_EQ(collective::totals(plan).bytes_sent, 2 * (world - 1) * 4 * c.problem.count / world);
    }
    c.problem.dtype = DType::kBF16;
    c.problem.count *= 2;  // a segment holds twice as many
    const int64_t each_way = (world - 1) * 2 * c.problem.count / world, wide = each_way - c.problem.count;
    for (const Plan& plan : plans_of(c)) EXPECT_EQ(collective::totals(plan).bytes_sent, 2 * each_way + wide);
  }
}

TEST(Halving, ScratchIsBoundedWhateverTheCount) {
  // Three levels: four sums of half a chunk, and windows for a half, a quarter and an eighth.
  for (const int64_t chunks : {10, 1000}) {
    EXPECT_LE(plans_of(halving_case(8, chunks))[0].scratch_bytes, 4 * 256 + kWindow * (256 + 128 + 64)) << chunks;
  }
}

TEST(Halving, FloatsThatAreNotSummedAreReducedInRankOrder) {
  Case c = halving_case(8, 1);
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMax}) {
    c.problem.op = op;
    c.problem.dtype = DType::kF32;
    EXPECT_EQ(plans_of(c)[1].algorithm, "direct");
    c.problem.dtype = DType::kI32;
    EXPECT_EQ(plans_of(c)[1].algorithm, "halving");
  }
}

TEST(Halving, OtherCollectivesAreDirectAndSumAlongTheSameTree) {
  for (const Collective what : {Collective::kReduceScatter, Collective::kReduce, Collective::kAllGather}) {
    Case c = halving_case(8, 1);
    c.problem.what = what;
    const Plan plan = plans_of(c)[1];
    EXPECT_EQ(plan.algorithm, "direct") << name_of(what);
    const std::vector<AddProgram> none, one = {program_of_ranks(8)};
    EXPECT_EQ(plan.programs, is_reduction(what) ? one : none) << name_of(what);
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
