// How fast devices copy from each other, whatever a call costs.
#include <gtest/gtest.h>

#include "device/cpp/runtime/host_functions.h"
#include "device/runtime/links.h"

namespace ringdp::gpu {
namespace {

using testing::devices;

constexpr int64_t kProbed = 16 << 20;

// Of a link of that speed, where every call takes so long beside; by a clock that only copies move.
LinkSpeed speed_of(double bytes_per_second, double seconds_per_call) {
  static double now = 0;
  devices.copies = [=](int, void*, const void*, size_t bytes) {
    now += seconds_per_call + static_cast<double>(bytes) / bytes_per_second;
  };
  return speed_of_copies(testing::host_functions(), 0, nullptr, nullptr, kProbed, [] { return now; });
}

class LinkSpeedTest : public ::testing::Test {
 protected:
  LinkSpeedTest() { testing::reset_devices(); }
};

TEST_F(LinkSpeedTest, WhatACallCostsIsNotTheLinks) {
  for (const double gigabytes : {25.0, 55.0, 300.0, 900.0}) {
    for (const double microseconds : {0.0, 20.0, 300.0}) {
      const LinkSpeed speed = speed_of(gigabytes * 1e9, microseconds * 1e-6);
      EXPECT_NEAR(speed.bytes_per_second, gigabytes * 1e9, gigabytes * 1e6) << microseconds << " us per call";
      EXPECT_EQ(links_of(speed.bytes_per_second).description.find("links like PCIe"),
                gigabytes < 70 ? 0 : std::string::npos);
    }
  }
}

TEST_F(LinkSpeedTest, NoLinkIsInfinitelyFast) {
  const LinkSpeed speed = speed_of(1e300, 1e-5);
  EXPECT_GT(speed.bytes_per_second, 1e12);
  EXPECT_LT(speed.bytes_per_second, 3e12);
}

TEST_F(LinkSpeedTest, CopiesThatFailHaveNoSpeed) {
  devices.fails = "copy_now";
  const LinkSpeed speed = speed_of(1e9, 0);
  EXPECT_EQ(speed.bytes_per_second, 0);
  EXPECT_EQ(speed.late, 0);
}

TEST_F(LinkSpeedTest, ACopyThatDoesNotEndIsToldApart) {
  int copies = 0;
  devices.is_late = [&](int, size_t bytes) { return ++copies, bytes == static_cast<size_t>(kProbed); };
  const LinkSpeed speed = speed_of(1e9, 0);
  EXPECT_EQ(speed.bytes_per_second, 0);
  EXPECT_EQ(speed.late, 1);
  EXPECT_EQ(copies, 4) << "three of nearly nothing, and none after it";
}

}  // namespace
}  // namespace ringdp::gpu
