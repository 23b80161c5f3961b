// What a rank says of its device, what is believed of it, and which executor serves which ranks.
#include "device/runtime/peer_info.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "device/cpp/runtime/host_functions.h"
#include "device/runtime/placement.h"

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
  EXPECT_EQ(info.process, peer_info_of(functions, 1).process) << "the same for all threads of a process";
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

// What ranks say after mapping is understood alike by all; what is no report reaches nobody.

TEST(MappingReport, WhomEachReachesAndTheFirstFailureAreKnown) {
  char memory = 0;
  const MappingReport good = report_on({&memory, &memory, &memory}, "");
  const MappingReport bad = report_on({&memory, nullptr, &memory}, "memory of rank 1: refused");
  const MappingReports all = reports_from({to_bytes(good), to_bytes(bad), to_bytes(bad)});
  EXPECT_EQ(all.reached, (std::vector<uint32_t>{7, 5, 5}));
  EXPECT_EQ(all.first_failure, "rank 1: memory of rank 1: refused");
}

TEST(MappingReport, ACopyThatDoesNotEndSaysMoreThanOtherFailures) {
  const MappingReport bad = report_on({nullptr}, "refused"), late = report_on({nullptr}, "it does not end", true);
  EXPECT_FALSE(reports_from({to_bytes(bad), to_bytes(bad)}).late);
  const MappingReports all = reports_from({to_bytes(bad), to_bytes(late), to_bytes(bad), to_bytes(late)});
  EXPECT_TRUE(all.late);
  EXPECT_EQ(all.first_failure, "rank 1: it does not end");
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

// Which executor serves which ranks, and who must reach whom.

PeerInfo rank_on(int device, uint64_t process, int multiprocessors = 132, int waits = 1) {
  PeerInfo info = peer_info_without("");
  info.usable = 1;
  info.uuid[3] = static_cast<unsigned char>(device);
  info.process = process;
  info.multiprocessors = multiprocessors;
  info.waits_on_streams = waits;
  return info;
}

TEST(GpuPlacement, ADeviceEachMeansSpin) {
  const Placement placement = place({rank_on(0, 10), rank_on(1, 11), rank_on(2, 12)});
  EXPECT_EQ(placement.executor, RD_GPU_SPIN);
  EXPECT_EQ(placement.why_not, "");
  EXPECT_EQ(placement.blocks, 24);
  EXPECT_EQ(placement.why, "SPIN: every rank has a device of its own, up to 24 blocks each");
}

TEST(GpuPlacement, ProcessesOnOneDeviceMeanStream) {
  const Placement placement = place({rank_on(0, 10), rank_on(1, 11), rank_on(0, 12)});
  EXPECT_EQ(placement.executor, RD_GPU_STREAM);
  EXPECT_EQ(placement.why_not, "");
  EXPECT_NE(placement.why.find("ranks 0 and 2 are processes that share a device"), std::string::npos) << placement.why;
  EXPECT_TRUE(placement.spans_devices);
  EXPECT_FALSE(place({rank_on(1, 10), rank_on(1, 11)}).spans_devices);
}

// What the first process of a new PID namespace says of its device; "" where this user may not make one.
std::string said_in_a_pid_namespace() {
  constexpr unsigned kPatienceS = 60;
  int ends[2];
  if (::pipe(ends) != 0) return "";
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kPatienceS);
    if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(1);
    const pid_t first = ::fork();
    if (first == 0 && ::getpid() == 1) {
      const std::string bytes = to_bytes(peer_info_of(host_functions(), 0));
      ::_exit(::write(ends[1], bytes.data(), bytes.size()) < 0);
    }
    ::waitpid(first, nullptr, 0);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string bytes(sizeof(PeerInfo), '\0');
  const ssize_t got = ::read(ends[0], bytes.data(), bytes.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return got == static_cast<ssize_t>(bytes.size()) ? bytes : "";
}

TEST(GpuPlacement, ProcessesOfTwoPidNamespacesAreNotTakenForThreads) {
  testing::reset_devices();
  const std::string a = said_in_a_pid_namespace(), b = said_in_a_pid_namespace();
  if (a.empty() || b.empty()) GTEST_SKIP() << "this user may not make PID namespaces here";
  const Placement placement = place(peer_infos_from({a, b}));
  EXPECT_EQ(placement.executor, RD_GPU_STREAM) << placement.why;
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

TEST(GpuPlacement, BlocksMayBeSetAsFarAsTheyFitAtOnce) {
  EXPECT_EQ(place({rank_on(0, 10), rank_on(1, 11)}, 64).blocks, 64);
  EXPECT_EQ(place({rank_on(0, 10), rank_on(0, 10)}, 64).blocks, 64) << "128 of 132";
  EXPECT_EQ(place({rank_on(0, 10)}, 3).blocks, 3);
  const Placement streams = place({rank_on(0, 10), rank_on(0, 11)}, 5);
  EXPECT_EQ(streams.executor, RD_GPU_STREAM);
  EXPECT_EQ(streams.blocks, 5);
  EXPECT_NE(streams.why.find("; kernels of up to 5 blocks"), std::string::npos) << streams.why;
  EXPECT_EQ(place({rank_on(0, 10), rank_on(0, 11)}).blocks, 0) << "as many as fit";
  for (const auto& [infos, room] : {std::pair{std::vector{rank_on(0, 10), rank_on(1, 11, 8)}, "at most 8, or 0"},
                                    std::pair{std::vector{rank_on(0, 10, 16), rank_on(0, 10, 16)},
                                              "at most 8 for each of the 2 ranks that share it, or 0"}}) {
    try {
      place(infos, 9);
      FAIL() << room;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("blocks=9 (RINGDP_BLOCKS) do not fit"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(room), std::string::npos) << error.what();
    }
  }
}

// From what all ranks know alone: the number of elements and of ranks.
TEST(GpuPlacement, ALaunchHasAPackForEveryThread) {
  plan::Problem problem;
  problem.world = 4;
  const auto blocks = [&](plan::Collective what, plan::DeviceAlgorithm algorithm, int64_t packs) {
    problem.what = what;
    problem.count = packs * plan::pack_elements(problem.dtype);
    return blocks_of(problem, algorithm, 24);
  };
  using plan::Collective;
  using plan::DeviceAlgorithm;
  EXPECT_EQ(blocks(Collective::kBarrier, DeviceAlgorithm::kDirect, 0), 1);
  EXPECT_EQ(blocks(Collective::kAllReduce, DeviceAlgorithm::kPush, kThreads), 1);
  EXPECT_EQ(blocks(Collective::kAllReduce, DeviceAlgorithm::kPush, kThreads + 1), 2);
  EXPECT_EQ(blocks(Collective::kAllReduce, DeviceAlgorithm::kDirect, 4 * kThreads), 1) << "a slice each";
  EXPECT_EQ(blocks(Collective::kAllReduce, DeviceAlgorithm::kDirect, 4 * kThreads + 1), 2);
  EXPECT_EQ(blocks(Collective::kReduceScatter, DeviceAlgorithm::kDirect, kThreads + 1), 2) << "a part each";
  EXPECT_EQ(blocks(Collective::kAllGather, DeviceAlgorithm::kDirect, 1 << 20), 24);
}

TEST(GpuPlacement, OneThatCannotWaitIsNamed) {
  const Placement placement = place({rank_on(0, 10), rank_on(0, 11, 132, 0)});
  EXPECT_EQ(placement.why_not,
            "ranks 0 and 1 are processes that share a device, and the device of rank 1 cannot wait on streams");
}

TEST(GpuPlacement, DifferentMigInstancesAreApart) {
  const auto on_instance = [](int instance, uint64_t process) {
    PeerInfo info = rank_on(instance, process);
    info.mig = 1;
    return info;
  };
  EXPECT_EQ(place({on_instance(0, 10), on_instance(0, 11), on_instance(1, 12)}).why_not,
            "ranks 0 and 2 are on different MIG instances, which share no memory");
  EXPECT_EQ(place({on_instance(0, 10), rank_on(1, 11)}).why_not,
            "ranks 0 and 1 are on different MIG instances, which share no memory");
  const Placement same = place({on_instance(0, 10), on_instance(0, 11)});
  EXPECT_EQ(same.why_not, "");
  EXPECT_EQ(same.executor, RD_GPU_STREAM);
}

TEST(GpuPlacement, ProcessesDoNotShareADeviceThroughMps) {
  const auto through_mps = [](int device, uint64_t process) {
    PeerInfo info = rank_on(device, process);
    info.mps = 1;
    return info;
  };
  EXPECT_NE(place({through_mps(1, 10), through_mps(0, 11), through_mps(0, 12)}).why_not.find("ranks 1 and 2 are"),
            std::string::npos);
  EXPECT_EQ(place({through_mps(0, 10), through_mps(1, 11)}).why_not, "") << "a device each";
  EXPECT_EQ(place({through_mps(0, 10), through_mps(0, 10)}).why_not, "") << "threads of one process";
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
