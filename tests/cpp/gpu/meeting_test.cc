// Ranks come to share memory, or none does and all know why; in the end everything is given back.
#include <gtest/gtest.h>

#include "gpu/neighbours.h"

namespace ringdp::gpu {
namespace {

using testing::devices;
using testing::Neighbours;

void expect_all_say(const std::vector<std::unique_ptr<Neighbourhood>>& met, const std::string& why) {
  for (const auto& one : met) EXPECT_NE(one->why_not().find(why), std::string::npos) << one->why_not();
}

void part(std::vector<std::unique_ptr<Neighbourhood>>& met) {
  for (const auto& one : met) one->part();
  for (const auto& one : met) EXPECT_TRUE(one->is_alone());
  met.clear();
}

TEST(Meeting, AllReachAll) {
  for (const int world : {1, 2, 4, 8}) {
    Neighbours neighbours(world);
    auto met = neighbours.meet();
    for (const auto& one : met) {
      EXPECT_EQ(one->why_not(), "");
      EXPECT_NE(one->description().find("SPIN"), std::string::npos);
      EXPECT_NE(one->description().find("everybody reaches everybody"), std::string::npos);
    }
    part(met);
    EXPECT_TRUE(devices.all_is_given_back());
  }
}

// In this process the ranks are threads; their cards say otherwise.
TEST(Meeting, ProcessesOnOneDeviceHaveTheirFlagsInHostMemory) {
  Neighbours neighbours(3);
  devices.same_device = true;
  neighbours.forge = [](int rank, Card& card) { card.pid = 100 + static_cast<uint64_t>(rank); };
  auto met = neighbours.meet();
  EXPECT_EQ(devices.mapped.size(), 3u);
  for (const auto& one : met) EXPECT_TRUE(one->on_streams());
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, OneThatCannotShareIsNamedByAll) {
  for (const char* const failing : {"describe", "kernels", "alloc", "host_alloc", "export"}) {
    Neighbours neighbours(3);
    devices.fails = failing;
    auto met = neighbours.meet();
    expect_all_say(met, std::string("rank 0: CUDA: ") + failing + " fails here");
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back()) << failing;
  }
}

TEST(Meeting, FlagsThatCannotBeMappedAreTheReason) {
  Neighbours neighbours(2);
  devices.fails = "host_map";
  neighbours.forge = [](int rank, Card& card) {
    card.pid = 100 + static_cast<uint64_t>(rank);
    card.uuid[0] = 0;
  };
  auto met = neighbours.meet();
  expect_all_say(met, "rank 0: CUDA: host_map fails here");
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhereHandlesAreRefusedDescriptorsServe) {
  Neighbours neighbours(3);
  devices.refuses_import = [](int device, const rd_gpu_handle& handle) { return device == 2 && !handle.needs_fd; };
  auto met = neighbours.meet();
  for (const auto& one : met) EXPECT_EQ(one->why_not(), "");
  part(met);
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Meeting, WhoIsRefusedBothWaysIsNamedByAll) {
  Neighbours neighbours(3);
  devices.refuses_import = [](int device, const rd_gpu_handle&) { return device == 2; };
  auto met = neighbours.meet();
  expect_all_say(met, "rank 2: memory of rank 0: CUDA: importing is refused here");
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

// Refused first, then without memory to offer: the pages of the first attempt are somebody else's by then.
TEST(Meeting, APageThatWasGivenBackIsNotWrittenTo) {
  Neighbours neighbours(2);
  std::vector<HostPage*> pages(2);
  devices.refuses_import = [](int, const rd_gpu_handle& handle) { return !handle.needs_fd; };
  neighbours.forge = [&](int rank, Card& card) {
    auto*& page = pages[static_cast<size_t>(rank)];
    if (page == nullptr) page = reinterpret_cast<HostPage*>(neighbours.heap_of(rank) + card.page);
  };
  neighbours.on_round = [](int round) {  // cards, verdicts, all have closed; then cards again
    if (round == 3) devices.fails = "alloc";
  };
  const auto met = neighbours.meet();
  expect_all_say(met, "alloc fails here");
  for (HostPage* const page : pages) std::memset(page->parted, 0, sizeof page->parted);
  for (const auto& one : met) one->part();
  for (const HostPage* const page : pages) {
    EXPECT_EQ(page->parted[0], 0u);
    EXPECT_EQ(page->parted[1], 0u);
  }
}

TEST(Meeting, APageOutsideItsHeapIsNotFollowed) {
  for (const int64_t page : {int64_t{-4096}, testing::kHeapBytes, int64_t{64}}) {
    Neighbours neighbours(2);
    neighbours.forge = [page](int rank, Card& card) { card.page = rank == 1 ? page : card.page; };
    auto met = neighbours.meet();
    expect_all_say(met, "its shared page at " + std::to_string(page) + " is not in its heap");
    met.clear();
    EXPECT_TRUE(devices.all_is_given_back());
  }
}

TEST(Meeting, WhereGraphsMayBeReplayedMemoryStaysAndSaysSo) {
  Neighbours neighbours(2);
  auto met = neighbours.meet();
  const uint32_t* const abort = &met[0]->signals().abort;
  met[1]->stay();
  EXPECT_FALSE(met[0]->given_up());  // which may not have come as far
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
  auto met = neighbours.meet();
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
}  // namespace ringdp::gpu
