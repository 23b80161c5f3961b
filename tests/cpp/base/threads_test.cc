#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <stdexcept>

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

const auto kLong = std::chrono::seconds(60);  // a guard against hanging

bool run(HelperThread& helper, std::function<void()> call) {
  return helper.begin(std::move(call)) && helper.wait(Deadline::after(kLong));
}

TEST(HelperThread, MakesOneCallAfterTheOther) {
  HelperThread helper;
  int calls = 0;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(helper, [&] { ++calls; }));
  EXPECT_EQ(calls, 3);
}

TEST(HelperThread, WhatACallThrowsIsThrownOnce) {
  HelperThread helper;
  EXPECT_THROW(run(helper, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_TRUE(run(helper, [] {}));
}

TEST(HelperThread, ACallThatDoesNotComeBackIsLeftBehind) {
  const auto go_on = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  {
    HelperThread helper;
    ASSERT_TRUE(helper.begin([go_on, ended] {
      go_on->get_future().wait();
      ended->set_value();
    }));
    EXPECT_FALSE(helper.wait(Deadline::after(std::chrono::milliseconds(1))));
    EXPECT_FALSE(helper.begin([] { FAIL() << "behind a call that has not come back"; }));
  }
  go_on->set_value();
  EXPECT_EQ(ended->get_future().wait_for(kLong), std::future_status::ready);
}

TEST(HelperThread, ACallThatComesBackLateIsStillWaitedFor) {
  const auto go_on = std::make_shared<std::promise<void>>();
  HelperThread helper;
  ASSERT_TRUE(helper.begin([go_on] { go_on->get_future().wait(); }));
  EXPECT_FALSE(helper.wait(Deadline::after(std::chrono::milliseconds(1))));
  go_on->set_value();
  EXPECT_TRUE(helper.wait(Deadline::never()));
  EXPECT_TRUE(run(helper, [] {}));
}

}  // namespace

}  // namespace ringdp
