// Ranks come to share memory, or none does and all know why; in the end everything is given back.
#include "device/runtime/peer_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "base/error.h"
#include "device/cpp/runtime/neighbours.h"
#include "device/runtime/check_work.h"
#include "device/runtime/signature.h"

namespace ringdp::gpu {

namespace {

using testing::devices;
using testing::Neighbours;

void expect_all_say(const std::vector<std::unique_ptr<PeerMemory>>& met, const std::string& why) {
  for (const auto& one : met) {
    EXPECT_NE(one->why_not().find(why), std::string::npos) << one->why_not();
    EXPECT_EQ(one->description(), "collectives run on the host: " + one->why_not());
    EXPECT_EQ(one->why_not(plan::Problem{}), one->why_not());
    EXPECT_EQ(one->why_no_step(), one->why_not());
  }
}

void part(std::vector<std::unique_ptr<PeerMemory>>& met) {
  for (const auto& one : met) one->teardown();
  for (const auto& one : met) EXPECT_TRUE(one->is_unmapped_by_peers());
  met.clear();
}

TEST(Meeting, AllReachAll) {
  for (const int world : {1, 2, 4, 8}) {
    Neighbours neighbours(world);
    auto met = neighbours.bootstrap();
    for (const auto& one : met) {
      EXPECT_EQ(one->why_not(), "");
      EXPECT_NE(one->description().find("SPIN"), std::string::npos);
      EXPECT_NE(one->description().find("all ranks reach each other"), std::string::npos);
    }
    part(met);
    EXPECT_TRUE(devices.all_is_given_back());
  }
}

// Of all ranks those of the slowest count, and a rank that cannot measure makes nobody choose otherwise.
TEST(Meeting, LinksAreMeasuredWhereWindowsAreLargeAndDevicesApart) {
  const auto said = [](int64_t window_bytes, bool same_device, double gigabytes_per_second, int fails) {
    Neighbours neighbours(3);
    neighbours.window_bytes = window_bytes;
    devices.same_device = same_device;
    devices.copies = [=](int device, void* to, const void* from, size_t bytes) {
      if (bytes < 4096) return testing::copy_as_told(device, to, from, bytes);
      if (device != 1 || gigabytes_per_second == 0) return;  // 0: at once
      std::this_thread::sleep_for(
          std::chrono::duration<double>(static_cast<double>(bytes) / 1e9 / gigabytes_per_second));
    };
    neighbours.on_round = [&](int round) { devices.fails = round == fails ? "copy_now" : ""; };
    auto met = neighbours.bootstrap();
    for (const auto& one : met) EXPECT_EQ(one->description(), met[0]->description());
    plan::Problem sum;
    sum.world = 3;
    sum.count = 5000;  // 20,000 bytes
    const std::string found = met[0]->description() + "; 5000 by " + name_of(met[0]->choose(sum).algorithm);
    part(met);
    EXPECT_TRUE(devices.all_is_given_back());
    return found;
  };
  constexpr int64_t kLarge = 16 << 20;
  const std::string over_pcie = said(kLarge, false, 4, 0);
  EXPECT_NE(over_pcie.find("; links like PCIe ("), std::string::npos) << over_pcie;
  EXPECT_NE(over_pcie.find(" GB/s); all_reduces of up to 15625 bytes by push"), std::string::npos) << over_pcie;
  EXPECT_NE(over_pcie.find("; 5000 by one_shot"), std::string::npos) << over_pcie;
  const std::string over_nvlink = said(kLarge, false, 0, 0);
  EXPECT_NE(over_nvlink.find("; links like NVLink ("), std::string::npos) << over_nvlink;
  EXPECT_NE(over_nvlink.find("; 5000 by push"), std::string::npos) << over_nvlink;
  for (const std::string& unmeasured :
       {said(1 << 20, false, 4, 0), said(kLarge, true, 4, 0), said(kLarge, false, 4, 2)}) {
    EXPECT_EQ(unmeasured.find("links like"), std::string::npos) << unmeasured;
    EXPECT_NE(unmeasured.find("; all_reduces of up to 138750 bytes by push"), std::string::npos) << unmeasured;
  }
}

// In this process the ranks are threads; their infos say otherwise.
TEST(Meeting, ProcessesOnOneDeviceHaveTheirFlagsInHostMemory) {
  Neighbours neighbours(3);
  devices.same_device = true;
  neighbours.forge = [](int rank, PeerInfo& info) { info.process = 100 + static_cast<uint64_t>(rank); };
  auto met = neighbours.bootstrap();
  EXPECT_EQ(devices.mapped.size(), 3u);
  for (const auto& one : met) EXPECT_TRUE(one->on_streams());
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, OneThatCannotShareIsNamedByAll) {
  for (const char* const failing : {"describe", "kernels", "alloc", "host_alloc", "export", "copy_now"}) {
    Neighbours neighbours(3);
    devices.fails = failing;
    auto met = neighbours.bootstrap();
    expect_all_say(met, std::string("rank 0: CUDA: ") + failing + " fails here");
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back()) << failing;
  }
}

TEST(Meeting, FlagsThatCannotBeMappedAreTheReason) {
  Neighbours neighbours(2);
  devices.fails = "host_map";
  neighbours.forge = [](int rank, PeerInfo& info) {
    info.process = 100 + static_cast<uint64_t>(rank);
    info.uuid[0] = 0;
  };
  auto met = neighbours.bootstrap();
  expect_all_say(met, "rank 0: CUDA: host_map fails here");
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

constexpr char kLegacy[] = "by legacy IPC: a rank that is killed may break the others' devices";

// Such memory outlives the rank that has shared it.
TEST(Meeting, DescriptorsComeFirst) {
  Neighbours neighbours(3);
  neighbours.on_round = [&](int) {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 3u) << "nothing else was tried";
  };
  std::vector<std::atomic<int>> offers(3);
  neighbours.forge = [&](int rank, PeerInfo& info) { offers[static_cast<size_t>(rank)] += info.memory.needs_fd; };
  auto met = neighbours.bootstrap();
  for (const auto& one : met) EXPECT_EQ(one->description().find(kLegacy), std::string::npos) << one->description();
  for (const auto& offer : offers) EXPECT_EQ(offer, 1);
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhereDescriptorsAreRefusedHandlesServe) {
  Neighbours neighbours(3);
  devices.refuses_import = [](int device, const rd_gpu_handle& handle) { return device == 2 && handle.needs_fd; };
  auto met = neighbours.bootstrap();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find(kLegacy), std::string::npos) << one->description();
  }
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 3u) << "the first attempt has left memory behind";
  }
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhereOneDeviceHasNoDescriptorsHandlesServe) {
  Neighbours neighbours(3);
  devices.without_descriptors = 1;
  auto met = neighbours.bootstrap();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find(kLegacy), std::string::npos) << one->description();
  }
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, BothReasonsAreSaidWhereTheyDiffer) {
  Neighbours neighbours(2);
  devices.without_descriptors = 0;
  devices.refuses_import = [](int device, const rd_gpu_handle&) { return device == 1; };
  auto met = neighbours.bootstrap();
  expect_all_say(met,
                 "rank 0: CUDA: no descriptors here; and by legacy IPC: rank 1: memory of rank 0: CUDA: importing is "
                 "refused here");
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhereOnlyNeighboursReachEachOtherThereIsARing) {
  Neighbours neighbours(4);
  std::vector<std::string> keys(4);
  const auto key_of = [](const rd_gpu_handle& handle) {
    return std::string(handle.key, handle.key + sizeof handle.key);
  };
  neighbours.forge = [&](int rank, PeerInfo& info) { keys[static_cast<size_t>(rank)] = key_of(info.memory); };
  devices.refuses_import = [&](int device, const rd_gpu_handle& handle) {
    return key_of(handle) == keys[static_cast<size_t>((device + 2) % 4)];
  };
  auto met = neighbours.bootstrap();
  for (const auto& one : met) {
    EXPECT_EQ(one->why_not(), "");
    EXPECT_NE(one->description().find("ring neighbours reach each other"), std::string::npos) << one->description();
    plan::Problem asked;
    asked.dtype = DType::kF32;
    asked.world = 4;
    EXPECT_EQ(one->why_not(asked), "");
    asked.what = plan::Collective::kAllToAll;
    EXPECT_EQ(one->why_not(asked), "all_to_all needs every pair of devices to reach each other");
    EXPECT_EQ(one->why_no_step(), "it needs every pair of devices to reach each other");
  }
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhoIsRefusedBothWaysIsNamedByAll) {
  Neighbours neighbours(3);
  devices.refuses_import = [](int device, const rd_gpu_handle&) { return device == 2; };
  auto met = neighbours.bootstrap();
  expect_all_say(met, "rank 2: memory of rank 0: CUDA: importing is refused here");
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

// Mapped memory in which accesses go astray: what one writes is lost, or others than the owner read something else.
TEST(Meeting, MemoryThatDoesNotHoldWhatIsWrittenIsNotUsed) {
  const std::map<std::string, std::function<void(int, void*, const void*, size_t)>> faults = {
      {"rank 1: memory of rank 0: it is mapped, and what is written is not read back",
       [](int device, void* to, const void* from, size_t bytes) {
         const auto* const signature = static_cast<const Signature*>(from);
         if (device == 1 && signature->owner == 1 && signature->writer == 2) return;  // ranks 0 and 1
         testing::copy_as_told(device, to, from, bytes);
       }},
      {"rank 1: memory of rank 0: it is mapped, and what its rank wrote is not read",
       [](int device, void* to, const void* from, size_t bytes) {
         testing::copy_as_told(device, to, from, bytes);
         auto* const signature = static_cast<Signature*>(to);
         if (device == 1 && signature->owner == 1 && signature->writer == 1) signature->token ^= uint64_t{1} << 63;
       }}};
  for (const auto& [why, fault] : faults) {
    Neighbours neighbours(2);
    devices.copies = fault;
    auto met = neighbours.bootstrap();
    expect_all_say(met, why);
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back());
  }
}

// What such a copy uses stays as it is on all ranks, whose other memory is as before, and nothing else is tried.
TEST(Meeting, AnAccessThatDoesNotEndIsTheReason) {
  Neighbours neighbours(3);
  int copies_of_rank_1 = 0;
  std::atomic<int> offers{0};
  devices.is_late = [&](int device, size_t) { return device == 1 && ++copies_of_rank_1 == 2; };  // behind its signature
  neighbours.forge = [&](int rank, PeerInfo&) { offers += rank == 0; };
  auto met = neighbours.bootstrap();
  expect_all_say(met, "rank 1: memory of rank 0: it is mapped, and accesses do not end, as behind an IOMMU");
  met.clear();
  EXPECT_EQ(offers, 1);
  EXPECT_EQ(copies_of_rank_1, 2) << "its other peers were not tried";
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 3u);
    EXPECT_EQ(devices.pinned.size(), 3u);
  }
  testing::give_all_back();
}

TEST(Meeting, ALongCopyThatDoesNotEndIsTheReason) {
  Neighbours neighbours(3);
  neighbours.window_bytes = 16 << 20;
  devices.is_late = [](int device, size_t bytes) { return device == 2 && bytes > sizeof(Signature); };
  auto met = neighbours.bootstrap();
  expect_all_say(met, "rank 2: a copy of 16777216 bytes of memory of rank 0 does not end");
  met.clear();
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 3u);
  }
  testing::give_all_back();
}

// Refused first, then without memory to offer: the pages of the first attempt are somebody else's by then.
TEST(Meeting, APageThatWasGivenBackIsNotWrittenTo) {
  Neighbours neighbours(2);
  std::vector<HostPage*> pages(2);
  devices.refuses_import = [](int, const rd_gpu_handle& handle) { return handle.needs_fd != 0; };
  neighbours.forge = [&](int rank, PeerInfo& info) {
    auto*& page = pages[static_cast<size_t>(rank)];
    if (page == nullptr) page = reinterpret_cast<HostPage*>(neighbours.heap_of(rank) + info.page);
  };
  neighbours.on_round = [](int round) {  // infos, reports, all have closed; then infos again
    if (round == 3) devices.fails = "alloc";
  };
  const auto met = neighbours.bootstrap();
  expect_all_say(met, "alloc fails here");
  for (HostPage* const page : pages) std::memset(page->unmapped, 0, sizeof page->unmapped);
  for (const auto& one : met) one->teardown();
  for (const HostPage* const page : pages) {
    EXPECT_EQ(page->unmapped[0], 0u);
    EXPECT_EQ(page->unmapped[1], 0u);
  }
}

TEST(Meeting, APageOutsideItsHeapIsNotFollowed) {
  for (const int64_t page : {int64_t{-4096}, testing::kHeapBytes, int64_t{64}}) {
    Neighbours neighbours(2);
    neighbours.forge = [page](int rank, PeerInfo& info) { info.page = rank == 1 ? page : info.page; };
    auto met = neighbours.bootstrap();
    expect_all_say(met, "its shared page at " + std::to_string(page) + " is not in its heap");
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back());
  }
}

TEST(Meeting, WhereGraphsMayBeReplayedMemoryStaysAndSaysSo) {
  Neighbours neighbours(2);
  auto met = neighbours.bootstrap();
  const uint32_t* const abort = &met[0]->signals().abort;
  met[1]->stay();
  EXPECT_FALSE(met[0]->aborted());  // which may not have come as far
  met[0]->stay();
  met.clear();
  EXPECT_EQ(*abort, 1u);
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 2u);
    EXPECT_EQ(devices.imports.size(), 2u);
  }
  testing::give_all_back();
}

TEST(Meeting, MemoryThatOthersStillMapIsNotFreed) {
  Neighbours neighbours(2);
  auto met = neighbours.bootstrap();
  met[0].reset();
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 2u);
    devices.imports.clear();
  }
  met.clear();
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 1u) << "rank 1's went: rank 0 had let go of it";
  }
  testing::give_all_back();
}

}  // namespace

// What runs over shared memory of devices, with what, and how it is ended.

namespace {

using plan::Collective;

plan::Problem problem(Collective what, int64_t count, DType dtype = DType::kF32, ReduceOp op = ReduceOp::kSum) {
  plan::Problem asked;
  asked.what = what;
  asked.dtype = dtype;
  asked.op = op;
  asked.world = 2;
  asked.count = count;
  return asked;
}

class PeerMemoryTest : public ::testing::Test {
 protected:
  ~PeerMemoryTest() override {
    for (const auto& one : met_) one->teardown();
  }
  Launched launch(const plan::Problem& whole) {
    PeerMemory::Piece piece;
    piece.problem = problem_of(whole, {0, whole.count});
    piece.deadline_ns = 1000;
    return met_[0]->launch(piece, met_[0]->choose(whole), nullptr);
  }
  static const Work& last_work() { return devices.runs.back().first; }

  Neighbours neighbours_{2};
  std::vector<std::unique_ptr<PeerMemory>> met_ = neighbours_.bootstrap();
};

class OnStreams : public PeerMemoryTest {
 protected:
  OnStreams() {
    for (const auto& one : met_) one->teardown();
    met_.clear();
    devices.same_device = true;
    neighbours_.forge = [](int rank, PeerInfo& info) { info.process = static_cast<uint64_t>(rank); };
    met_ = neighbours_.bootstrap();
  }
};

// What the stream of rank 0 writes.
void post(const Work& work) {
  for (int s = 0; s < work.steps; ++s) {
    const plan::DeviceStep& step = work.step[s];
    if (step.verb != plan::DeviceVerb::kPost) continue;
    work.flags[step.peer]->of[step.slot][0][work.rank].value = work.stream_epoch * kValuesPerEpoch + step.value;
  }
}

TEST_F(PeerMemoryTest, TheLibrarySaysWhatItReduces) {
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8)), "");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllReduce, 8, DType::kF32, ReduceOp::kMax)),
            "no kernel for MAX on float32");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kReduceScatter, 8, DType::kI16)), "no kernel for SUM on int16");
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kAllGather, 8, DType::kU8)), "")
      << "moves need no kernel of their own";
  EXPECT_EQ(met_[0]->why_not(problem(Collective::kReduce, 8, DType::kI16)), "no kernel for SUM on int16");
}

TEST_F(PeerMemoryTest, ALaunchIsGoodWorkAndCounts) {
  for (const Collective what : {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast,
                                Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    launch(problem(what, 1000));
    check_work(last_work(), DType::kF32);
  }
  ASSERT_EQ(devices.runs.size(), 6u);
  for (size_t i = 0; i < devices.runs.size(); ++i) {
    EXPECT_EQ(devices.runs[i].second, RD_GPU_SPIN);
    EXPECT_EQ(devices.runs[i].first.stream_epoch, i + 1) << "a kernel's own count of launches";
    EXPECT_EQ(devices.runs[i].first.blocks, 1);
  }
  launch(problem(Collective::kAllGather, 1 << 16));
  EXPECT_EQ(devices.runs.back().first.blocks, 8) << "all that it may have";
}

TEST_F(PeerMemoryTest, AStepFindsWhatLiesInWindows) {
  EXPECT_EQ(met_[1]->why_no_step(), "");
  EXPECT_EQ(met_[1]->cut_step(1 << 20).elements.size(), 8u) << "two parts of 4 MiB through a window of 1 MiB";
  met_[1]->launch_barrier(1000, nullptr);
  check_work(last_work(), DType::kF32);
  alignas(16) float own[8];
  StepFacts facts;
  facts.at = 4096;
  facts.count = 8;
  facts.parameters = facts.state[0] = facts.state[1] = own;
  met_[1]->step(facts, nullptr);
  ASSERT_EQ(devices.steps.size(), 1u);
  const AdamWork& work = devices.steps[0];
  check_adam_work(work);
  EXPECT_EQ(work.rank, 1);
  EXPECT_EQ(work.gradients[0], reinterpret_cast<float*>(met_[0]->window() + 4096));
  EXPECT_EQ(work.parameters[0], work.gradients[0]);
  EXPECT_EQ(work.parameters[1], own);
  devices.fails = "adam_step";
  EXPECT_THROW(met_[1]->step(facts, nullptr), Error);
  devices.fails.clear();
}

TEST_F(PeerMemoryTest, WhatTheDeviceRefusesIsNotCounted) {
  devices.fails = "run";
  EXPECT_THROW(launch(problem(Collective::kAllReduce, 16)), Error);
  devices.fails.clear();
  EXPECT_EQ(launch(problem(Collective::kAllReduce, 16)).epoch, 1u);
}

TEST_F(PeerMemoryTest, SmallSumsArePushedAndLargeOnesDirect) {
  EXPECT_EQ(met_[0]->choose(problem(Collective::kAllReduce, 16)).algorithm, plan::DeviceAlgorithm::kPush);
  EXPECT_EQ(met_[0]->choose(problem(Collective::kAllReduce, 1 << 24)).algorithm, plan::DeviceAlgorithm::kDirect);
}

TEST_F(PeerMemoryTest, TheHostsWordAndPoisonAreWhereTheDeviceLooks) {
  met_[0]->await_release(7, nullptr);
  EXPECT_EQ(devices.awaited, std::vector<uint32_t>{7});
  met_[0]->release(7);
  EXPECT_EQ(met_[0]->signals().released, 7u);
  met_[0]->poison(met_[0]->window() + 16, 32, nullptr);
  ASSERT_EQ(devices.poisoned.size(), 1u);
  EXPECT_EQ(devices.poisoned[0].first, met_[0]->window() + 16);
}

TEST_F(PeerMemoryTest, WhenOneGivesUpAllDo) {
  met_[0]->abort();
  EXPECT_TRUE(met_[0]->aborted());
  EXPECT_TRUE(met_[1]->aborted()) << "a caller of rank 0 has its memory back, which rank 1 may still read";
}

TEST_F(PeerMemoryTest, WorkInABufferKnowsEverybodysAddressesAndAborts) {
  std::vector<std::shared_ptr<DeviceMemory>> memory(2);
  neighbours_.together([&](int r) {
    memory[static_cast<size_t>(r)] = met_[static_cast<size_t>(r)]->buffers()->make(4096, neighbours_.around(r));
  });
  const auto asked = problem(Collective::kAllGather, 256);
  PeerMemory::Piece piece;
  piece.problem = asked;
  piece.deadline_ns = 1000;
  piece.buffer = {1, 1024};
  piece.input_stride = 1024;
  met_[0]->launch(piece, met_[0]->choose(asked), nullptr);
  const Work work = last_work();
  check_work(work, DType::kF32);
  for (int r = 0; r < 2; ++r) {
    char* const begin = memory[static_cast<size_t>(r)]->data() + 1024;
    EXPECT_EQ(work.output[r], begin);
    EXPECT_EQ(work.input[r], begin + r * 1024) << "its part of the output";
    EXPECT_NE(work.aborts[r], nullptr);
  }
  EXPECT_EQ(work.aborts[0], work.abort);
  launch(asked);
  EXPECT_EQ(last_work().aborts[0], nullptr) << "windows are nobody's";
}

TEST_F(PeerMemoryTest, ARecordIsReadOnceItIsWhole) {
  EXPECT_FALSE(met_[0]->expired());
  auto& record = const_cast<Expired&>(met_[0]->signals().expired);
  record.peer = 1;
  record.set = 1;
  EXPECT_FALSE(met_[0]->expired());
  record.set = 2;
  EXPECT_EQ(met_[0]->expired()->peer, 1);
}

TEST_F(OnStreams, NothingIsPushed) {
  const auto asked = problem(Collective::kAllReduce, 16);
  EXPECT_NE(met_[0]->choose(asked).algorithm, plan::DeviceAlgorithm::kPush);
  launch(asked);
  check_stream_work(last_work());
  EXPECT_EQ(devices.runs.back().second, RD_GPU_STREAM);
}

TEST_F(OnStreams, WhoIsWaitedForIsKnownAndWaitsEnd) {
  const Launched launched = launch(problem(Collective::kAllReduce, 16));
  EXPECT_FALSE(met_[0]->waits_for(launched)) << "its own stream has not come so far";
  post(last_work());
  ASSERT_TRUE(met_[0]->waits_for(launched));
  EXPECT_EQ(met_[0]->waits_for(launched)->peer, 1);
  EXPECT_FALSE(met_[0]->aborted());
  met_[0]->abort();
  EXPECT_TRUE(met_[0]->aborted());
  EXPECT_FALSE(met_[0]->waits_for(launched));
  EXPECT_TRUE(met_[1]->aborted()) << "the stream of rank 0 goes on, and tells rank 1 what is not so";
}

}  // namespace

}  // namespace ringdp::gpu
