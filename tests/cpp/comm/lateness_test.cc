#include "comm/lateness.h"

#include <gtest/gtest.h>

namespace ringdp::comm {
namespace {

bool yes() { return true; }
bool no() { return false; }

TEST(Lateness, AStoppedProcessIsReportedWithinASecond) {
  Lateness lateness(0);
  EXPECT_FALSE(lateness.due("barrier()", 0.1, yes));
  EXPECT_TRUE(lateness.due("barrier()", 0.9, yes));
  EXPECT_TRUE(lateness.due("barrier()", 0.9, yes)) << "another time is another trouble";
}

TEST(Lateness, ARankThatHasNotCalledIsReportedAfterTenSecondsOnceForEachCall) {
  Lateness lateness(0);
  EXPECT_FALSE(lateness.due("barrier()", 9.9, no));
  EXPECT_TRUE(lateness.due("barrier()", 10.1, no));
  EXPECT_FALSE(lateness.due("barrier()", 3600, no));
  EXPECT_TRUE(lateness.due("all_reduce()", 10.1, no));
}

TEST(Lateness, WhereWaitsAreUsuallyLongTwentyTimesAsLongIsLate) {
  Lateness lateness(0);
  for (const double seconds : {2.0, 4.0, 0.01, 3.0}) lateness.took("barrier()", seconds);  // the short one is no wait
  EXPECT_FALSE(lateness.due("barrier()", 59, no));
  EXPECT_TRUE(lateness.due("all_reduce()", 59, no));
  EXPECT_TRUE(lateness.due("barrier()", 61, no));
}

TEST(Lateness, WhatIsSetHoldsForEveryWait) {
  Lateness lateness(100);
  lateness.took("barrier()", 60);
  EXPECT_FALSE(lateness.due("barrier()", 0.09, yes));
  EXPECT_TRUE(lateness.due("barrier()", 0.11, no));
  EXPECT_TRUE(lateness.due("barrier()", 0.11, no));
  EXPECT_TRUE(lateness.is_short(0.09) && !lateness.is_short(0.11));
}

TEST(Lateness, CallsBeyondTheMostAreOne) {
  Lateness lateness(0);
  const auto call = [](size_t number) { return "send(" + std::to_string(number) + ")"; };
  for (size_t number = 0; number < Lateness::kMostCalls; ++number) EXPECT_TRUE(lateness.due(call(number), 11, no));
  EXPECT_TRUE(lateness.due("recv(1)", 11, no));
  EXPECT_FALSE(lateness.due("recv(2)", 11, no));
}

}  // namespace
}  // namespace ringdp::comm
