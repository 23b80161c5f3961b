#include "trace/counters.h"

#include <gtest/gtest.h>

namespace ringdp::trace {
namespace {

TEST(Delays, WhoWaitsLeastCameLast) {
  const Delay delay = delay_of({200, 190, 3, 210});
  EXPECT_EQ(delay.rank, 2);
  EXPECT_EQ(delay.ns, 187);  // had rank 2 come with rank 1
}

TEST(Delays, WhoeverCameTogetherDelaysNobody) {
  EXPECT_EQ(delay_of({50, 0, 0}).ns, 0);
  EXPECT_EQ(delay_of({0, 0}).ns, 0);
}

TEST(Delays, WhatIsNotKnownOfAllIsOfNone) {
  EXPECT_EQ(delay_of({100, -1, 5}).ns, 0);
  EXPECT_EQ(delay_of({100}).ns, 0);
  EXPECT_EQ(delay_of({}).ns, 0);
}

TEST(Delays, AddUpByRank) {
  Delays delays(3);
  delays.add(delay_of({10, 0, 30}));
  delays.add(delay_of({0, 5, 9}));
  delays.add(delay_of({20, 0, 30}));
  delays.add(delay_of({-1, -1, -1}));
  EXPECT_EQ(delays.by_rank(), (std::vector<int64_t>{5, 30, 0}));
}

}  // namespace

}  // namespace ringdp::trace
