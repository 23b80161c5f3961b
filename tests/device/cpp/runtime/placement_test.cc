// Which executor serves which ranks, and who must reach whom.
#include "device/runtime/placement.h"

#include <gtest/gtest.h>

namespace ringdp::gpu {
namespace {

PeerInfo rank_on(int device, uint64_t pid, int multiprocessors = 132, int waits = 1) {
  PeerInfo info = peer_info_without("");
  info.usable = 1;
  info.uuid[3] = static_cast<unsigned char>(device);
  info.pid = pid;
  info.multiprocessors = multiprocessors;
  info.waits_on_streams = waits;
  return info;
}

TEST(GpuPlacement, ADeviceEachMeansSpin) {
  const Placement placement = place({rank_on(0, 10), rank_on(1, 11), rank_on(2, 12)});
  EXPECT_EQ(placement.executor, RD_GPU_SPIN);
  EXPECT_EQ(placement.why_not, "");
  EXPECT_EQ(placement.blocks, 24);
  EXPECT_EQ(placement.why, "SPIN: every rank has a device of its own, 24 blocks each");
}

TEST(GpuPlacement, ProcessesOnOneDeviceMeanStream) {
  const Placement placement = place({rank_on(0, 10), rank_on(1, 11), rank_on(0, 12)});
  EXPECT_EQ(placement.executor, RD_GPU_STREAM);
  EXPECT_EQ(placement.why_not, "");
  EXPECT_NE(placement.why.find("ranks 0 and 2 are processes that share a device"), std::string::npos) << placement.why;
}

TEST(GpuPlacement, ThreadsOnOneDeviceSpinWhileTheirKernelsFit) {
  const Placement placement = place({rank_on(0, 10), rank_on(0, 10), rank_on(0, 10), rank_on(0, 10)});
  EXPECT_EQ(placement.executor, RD_GPU_SPIN);
  EXPECT_EQ(placement.blocks, blocks_for(132, 4));
  EXPECT_EQ(placement.blocks, 132 / 8);
  EXPECT_NE(placement.why.find("threads"), std::string::npos);
  const Placement crowded = place({rank_on(0, 10, 2), rank_on(0, 10, 2), rank_on(0, 10, 2)});
  EXPECT_EQ(crowded.executor, RD_GPU_STREAM);
  EXPECT_NE(crowded.why.find("3 ranks share a device that holds fewer kernels"), std::string::npos) << crowded.why;
}

TEST(GpuPlacement, TheSmallestDeviceCountsForAll) {
  EXPECT_EQ(place({rank_on(0, 10, 132), rank_on(1, 11, 8)}).blocks, 4);
  EXPECT_EQ(place({rank_on(0, 10, 1), rank_on(1, 11, 132)}).blocks, 1);
}

TEST(GpuPlacement, OneThatCannotWaitIsNamed) {
  const Placement placement = place({rank_on(0, 10), rank_on(0, 11, 132, 0)});
  EXPECT_EQ(placement.why_not,
            "ranks 0 and 1 are processes that share a device, and the device of rank 1 cannot wait on streams");
}

TEST(GpuPlacement, ReachIsOfAllOrOfNeighboursOrTooLittle) {
  EXPECT_EQ(reach_of({0b1}), Reach::kAll);
  EXPECT_EQ(reach_of({0b1111, 0b1111, 0b1111, 0b1111}), Reach::kAll);
  EXPECT_EQ(reach_of({0b1011, 0b0111, 0b1110, 0b1101}), Reach::kNeighbours);
  EXPECT_EQ(reach_of({0b1011, 0b0011, 0b1110, 0b1101}), Reach::kTooFew);
  EXPECT_EQ(reach_of({0b01, 0b11}), Reach::kTooFew);
}

}  // namespace
}  // namespace ringdp::gpu
