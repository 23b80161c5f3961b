#include "plan/owner_fold.h"

#include <gtest/gtest.h>

#include "harness.h"

namespace ringdp::plan::testing {
namespace {

Case fold_case(Collective what, int world, int64_t count) {
  Case c;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.segment_bytes = 1024;
  return c;
}

// Slices of N different sizes, one of them empty: what a rank sends is everyone else's slice and what others get.
TEST(OwnerFold, BytesFollowTheSlices) {
  const std::vector<Extent> slices = {{0, 10}, {10, 10}, {10, 400}, {400, 1000}};
  Problem problem = fold_case(Collective::kReduce, 4, 1000).problem;
  problem.root = 2;
  for (problem.rank = 0; problem.rank < 4; ++problem.rank) {
    const int64_t mine = slices[problem.rank].count();
    const Plan plan = fold_at_owners("test", problem, slices);
    EXPECT_EQ(plan.algorithm, "test");
    const int64_t result = problem.rank == problem.root ? 0 : mine;
    EXPECT_EQ(collective::totals(plan).bytes_sent, 4 * (1000 - mine + result)) << problem.rank;
  }
}

TEST(OwnerFold, ReduceSendsResultsToTheRootOnly) {
  for (int world = 2; world <= 9; ++world) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      Case c = fold_case(Collective::kReduce, world, 100 * world);
      c.problem.dtype = dtype;
      c.problem.root = world - 1;
      const int64_t tensor = c.problem.count * size_of(dtype), slice = tensor / world;
      for (const Plan& plan : plans_of(c)) {
        const collective::PlanTotals sums = collective::totals(plan);
        const bool is_root = plan.rank == c.problem.root;
        EXPECT_EQ(sums.bytes_sent, tensor - slice + (is_root ? 0 : slice)) << text_of(c);
        EXPECT_EQ(sums.bytes_received, (world - 1) * slice * (is_root ? 2 : 1)) << text_of(c);
      }
    }
  }
}

// Peers x window x segment; a rank that passes its results on needs one window more.
TEST(OwnerFold, ScratchIsBoundedWhateverTheCount) {
  for (const int64_t count : {100'000, 1'000'000}) {
    EXPECT_EQ(plans_of(fold_case(Collective::kAllReduce, 4, count))[1].scratch_bytes, 3 * 4 * 1024) << count;
    EXPECT_EQ(plans_of(fold_case(Collective::kReduce, 4, count))[1].scratch_bytes, 4 * 4 * 1024) << count;
    EXPECT_EQ(plans_of(fold_case(Collective::kReduce, 4, count))[0].scratch_bytes, 3 * 4 * 1024) << count;
  }
}

}  // namespace
}  // namespace ringdp::plan::testing
