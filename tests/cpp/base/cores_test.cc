#include "base/cores.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ringdp {
namespace {

TEST(Cores, AThreadRunsOnOneOfItsCores) {
  const std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
  EXPECT_NE(std::find(cores.begin(), cores.end(), current_core()), cores.end());
}

TEST(Cores, MovingGoesToEachAndLeavesTheChoiceAsItWas) {
  const std::vector<int> cores = usable_cores();
  for (const int core : cores) {
    bool seen = false;  // where a busy machine moves the thread on before we look, another move shows it
    for (int i = 0; i < 1000 && !seen; ++i) {
      ASSERT_TRUE(move_to({core}));
      seen = current_core() == core;
    }
    EXPECT_TRUE(seen) << core;
    EXPECT_EQ(usable_cores(), cores);
  }
}

TEST(Cores, ThereIsNoMoveToCoresOfOthers) {
  const std::vector<int> cores = usable_cores();
  for (const std::vector<int>& wrong : {std::vector<int>{}, {-1}, {1 << 20}, {cores.back() + 1}}) {
    EXPECT_FALSE(move_to(wrong));
  }
  EXPECT_EQ(usable_cores(), cores);
}

}  // namespace
}  // namespace ringdp
