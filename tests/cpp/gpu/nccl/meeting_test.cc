// How ranks that share no memory come to a group of NCCL: all, or none and all know why; nothing is left behind.
#include <gtest/gtest.h>

#include "gpu/nccl/parties.h"

namespace ringdp::gpu {
namespace {

using testing::devices;
using testing::fake_nccl;
using testing::Parties;

void expect_none(const std::string& why, Parties& parties) {
  auto met = parties.meet();
  for (const auto& one : met) EXPECT_EQ(one->why_not(), why);
  for (const auto& one : met) EXPECT_EQ(one->description(), "collectives run on the host: " + why);
  EXPECT_TRUE(devices.all_is_given_back());
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST(NcclMeeting, ADeviceForEachMakesAGroup) {
  Parties parties(3);
  auto met = parties.meet();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find("NCCL 2.29.7: a device for each of 3 ranks"), std::string::npos);
  }
  for (const auto& one : met) one->part();
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
  EXPECT_TRUE(fake_nccl.nothing_is_left());
}

TEST(NcclMeeting, WithoutNcclThereIsNone) {
  Parties parties(2);
  fake_nccl.version = 0;
  expect_none("rank 0: no NCCL: none here", parties);
}

TEST(NcclMeeting, OnOneDeviceThereIsNone) {
  Parties parties(2);
  devices.same_device = true;
  expect_none("ranks 0 and 1 share a device, and NCCL wants one for each", parties);
}

TEST(NcclMeeting, WithoutMemoryThereIsNone) {
  Parties parties(2);
  devices.fails = "alloc";
  expect_none("rank 0: CUDA: alloc fails here", parties);
}

TEST(NcclMeeting, WhatOneRankIsRefusedAllDoWithout) {
  Parties parties(3);
  fake_nccl.refuses_rank = {1};
  expect_none("rank 1: NCCL: ncclCommInitRank: unhandled system error", parties);
}

}  // namespace
}  // namespace ringdp::gpu
