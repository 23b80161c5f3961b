#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "collective/executor.h"
#include "collective/executor_world.h"

namespace ringdp::collective {
namespace {

// Of an all_reduce each rank folds its slice, or on one server all of it; the rest is copied and nobody is told.
TEST(ExecutorMemory, FoldedResultsAreToldOnceWhenTheyAreThere) {
  constexpr int64_t kCount = 100'003;
  for (const Case& c : kCases) {
    if (c.wire != WireType::kFp32) continue;
    World world(3, c, kCount, 0, 1 << 20);
    std::vector<std::vector<int>> told(3, std::vector<int>(kCount, 0));
    world.on_result = [&](int rank, int64_t begin, int64_t count) {
      const float* const there = world.out(rank).data() + begin;
      ASSERT_EQ(std::count(there, there + count, 6.0f), count);
      for (int64_t i = begin; i < begin + count; ++i) ++told[rank][i];
    };
    world.start(1, {1, 1, 1});
    world.run();
    int64_t all = 0;
    for (const std::vector<int>& counts : told) {
      ASSERT_LE(*std::max_element(counts.begin(), counts.end()), 1);
      all += std::accumulate(counts.begin(), counts.end(), int64_t{0});
    }
    EXPECT_GE(all, kCount) << static_cast<int>(c.algorithm);
  }
}

TEST(ExecutorMemory, WhatIsStagedPastTheCachesArrives) {
  constexpr int64_t kCount = 1 << 20, kSlotBytes = 256 << 10;
  for (int ranks = 2; ranks <= 3; ++ranks) {
    World world(ranks, {AlgorithmChoice::kArena, Order::kRank, true}, kCount, 0, kSlotBytes);
    int past_caches = 0;
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      for (int r = 0; r < ranks; ++r) {
        for (int64_t i = 0; i < kCount; ++i) world.in(r)[i] = static_cast<float>(i % 1009 + r * static_cast<int>(seq));
      }
      world.start(seq, std::vector<int>(ranks, 1));
      past_caches += world.workspace(0).slot_path.past_caches();
      world.run();
      for (int r = 0; r < ranks; ++r) {
        const auto extra = static_cast<float>(static_cast<int>(seq) * ranks * (ranks - 1) / 2);
        std::vector<float> right(kCount);
        for (int64_t i = 0; i < kCount; ++i) right[i] = static_cast<float>(ranks * (i % 1009)) + extra;
        ASSERT_TRUE(world.out(r) == right);
      }
    }
    EXPECT_GT(past_caches, 0) << "the second long plan looks whether they are slower";
  }
}

}  // namespace
}  // namespace ringdp::collective
