#include "comm/step_aside.h"

#include <gtest/gtest.h>

#include "base/cores.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::comm {
namespace {

using Cores = std::vector<int>;

TEST(StepAside, OnlyWhoSharesACoreMoves) {
  EXPECT_EQ(free_cores({0, 1}, 0, {1}), Cores{});
  EXPECT_EQ(free_cores({0, 1}, 0, {-1}), Cores{});
  EXPECT_EQ(free_cores({0, 1}, 0, {0}), Cores{1});
}

TEST(StepAside, CoresOfPeersAndOfOthersAreNotFree) {
  EXPECT_EQ(free_cores({0, 1, 2, 3}, 2, {0, 2}), (Cores{1, 3}));
  EXPECT_EQ(free_cores({0, 2}, 2, {0, 2}), Cores{}) << "there is nowhere to go";
  EXPECT_EQ(free_cores({5, 7}, 6, {6}), (Cores{5, 7}));
}

TEST(StepAside, LeavesTheCoreOfAPeer) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "one core";
  const Cores before = usable_cores();
  const auto arenas = transport::make_local_arenas({2, 64, 64, 0});
  bool left = false;  // where a busy machine moves the thread back before we look, another try shows it
  for (int i = 0; i < 1000 && !left; ++i) {
    arenas[1]->arrive();
    const int shared = arenas[0]->core(1);
    move_to({shared});
    step_aside(*arenas[0]);
    left = current_core() != shared && arenas[1]->core(0) != shared;
  }
  EXPECT_TRUE(left);
  EXPECT_EQ(usable_cores(), before);
}

}  // namespace
}  // namespace ringdp::comm
