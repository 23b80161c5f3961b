// What a rank says of its device, and what is believed of it.
#include "device/runtime/peer_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "device/cpp/runtime/host_functions.h"

namespace ringdp::gpu {

namespace {

using testing::host_functions;

TEST(GpuPeerInfo, ADeviceIsDescribed) {
  testing::reset_devices();
  const Functions functions = host_functions();
  const PeerInfo info = peer_info_of(functions, 3);
  EXPECT_EQ(info.usable, 1);
  EXPECT_EQ(info.uuid[0], 3);
  EXPECT_EQ(info.multiprocessors, 16);
  EXPECT_EQ(info.pid, static_cast<uint64_t>(getpid()));
}

TEST(GpuPeerInfo, WhatTheLibrarySaysIsTheReason) {
  testing::reset_devices();
  testing::devices.fails = "describe";
  const Functions functions = host_functions();
  try {
    peer_info_of(functions, 0);
    FAIL() << "a device that cannot be described has no card";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "CUDA: describe fails here");
  }
}

TEST(GpuPeerInfo, ItArrivesAsItWasSent) {
  testing::reset_devices();
  PeerInfo info = peer_info_of(host_functions(), 1);
  info.page = 8192;
  info.memory.bytes = 77;
  const std::vector<PeerInfo> infos = peer_infos_from({to_bytes(info), to_bytes(peer_info_without("no device"))});
  EXPECT_EQ(to_bytes(infos[0]), to_bytes(info));
  EXPECT_EQ(why_not(infos), "rank 1: no device");
  EXPECT_EQ(why_not({infos[0]}), "");
}

TEST(GpuPeerInfo, AReasonOfAnyLengthEnds) {
  const std::vector<PeerInfo> infos = peer_infos_from({to_bytes(peer_info_without(std::string(5000, 'x')))});
  EXPECT_EQ(why_not(infos), "rank 0: " + std::string(sizeof(PeerInfo::why_not) - 1, 'x'));
}

TEST(GpuPeerInfo, AnotherBuildIsNamed) {
  std::string other = to_bytes(peer_info_without(""));
  other[0] ^= 1;
  for (const std::string& bytes : {other, other.substr(1), std::string()}) {
    try {
      peer_infos_from({to_bytes(peer_info_without("")), bytes});
      FAIL() << "it cannot be understood";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_EQ(error.culprit(), 1);
      EXPECT_NE(std::string(error.what()).find("rank 1 runs another build"), std::string::npos);
    }
  }
}

}  // namespace

// What ranks say after mapping is understood alike by all; what is no report reaches nobody.

namespace {

TEST(MappingReport, WhomEachReachesAndTheFirstFailureAreKnown) {
  char memory = 0;
  const MappingReport good = report_on({&memory, &memory, &memory}, "");
  const MappingReport bad = report_on({&memory, nullptr, &memory}, "memory of rank 1: refused");
  const MappingReports all = reports_from({to_bytes(good), to_bytes(bad), to_bytes(bad)});
  EXPECT_EQ(all.reached, (std::vector<uint32_t>{7, 5, 5}));
  EXPECT_EQ(all.first_failure, "rank 1: memory of rank 1: refused");
}

TEST(MappingReport, ALongSentenceIsCut) {
  const MappingReports all = reports_from({to_bytes(report_on({nullptr}, std::string(1000, 'x')))});
  EXPECT_EQ(all.first_failure, "rank 0: " + std::string(251, 'x'));
}

TEST(MappingReport, OtherBytesReachNobody) { EXPECT_EQ(reports_from({"nonsense"}).reached, std::vector<uint32_t>{0}); }

TEST(MappingReport, SocketsAreOfThoseWhoseMemoryNeedsThem) {
  std::vector<PeerInfo> infos(2);
  infos[0].socket[0] = infos[1].socket[0] = 's';
  infos[1].memory.needs_fd = 1;
  EXPECT_EQ(sockets_of(infos), (std::vector<std::string>{"", "s"}));
}

}  // namespace

}  // namespace ringdp::gpu
