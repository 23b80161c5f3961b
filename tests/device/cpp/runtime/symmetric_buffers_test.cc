// Memory that peers map is taken and given back, and what cannot be had leaves nothing behind.
#include "device/runtime/symmetric_buffers.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "device/cpp/runtime/host_functions.h"
#include "device/cpp/runtime/neighbours.h"

namespace ringdp::gpu {

namespace {

using testing::devices;

TEST(DeviceMemory, IsTakenExportedAndGivenBack) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    const DeviceMemory memory(functions, 0, 100, sharing);
    EXPECT_EQ(memory.data()[99], 0);
    UniqueFd fd;
    EXPECT_EQ(memory.handle(&fd).needs_fd, sharing == RD_GPU_SHARE_FD);
    EXPECT_EQ(static_cast<bool>(fd), sharing == RD_GPU_SHARE_FD);
  }
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(DeviceMemory, SaysWhyThereIsNone) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  devices.fails = "alloc";
  try {
    DeviceMemory(functions, 0, 100, RD_GPU_SHARE_AUTO);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "CUDA: alloc fails here");
  }
}

}  // namespace

// SymmetricBuffers: all ranks have one or none has; they end together, once nobody needs them; nothing is freed that
// others map.

namespace {

using testing::Neighbours;

class SymmetricBuffersTest : public ::testing::Test {
 protected:
  using Held = std::vector<std::shared_ptr<DeviceMemory>>;  // by rank

  SymmetricBuffersTest() { arenas_ = count(); }
  ~SymmetricBuffersTest() override {
    for (const auto& one : met_) one->teardown();
    met_.clear();
    EXPECT_TRUE(devices.all_is_given_back());
  }

  SymmetricBuffers& of(int rank) { return *met_[static_cast<size_t>(rank)]->buffers(); }
  Held make(int64_t bytes) {
    Held held(kWorld);
    neighbours_.together([&](int r) { held[static_cast<size_t>(r)] = of(r).make(bytes, neighbours_.around(r)); });
    return held;
  }
  void reclaim() {
    neighbours_.together([&](int r) { of(r).reclaim(neighbours_.around(r)); });
  }
  static size_t count() {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    return devices.memory.size();
  }
  size_t made() const { return count() - arenas_; }
  void expect_refused(int64_t bytes, const std::string& why) {
    for (const auto& memory : make(bytes)) EXPECT_EQ(memory, nullptr);
    for (int r = 0; r < kWorld; ++r) EXPECT_NE(of(r).why_not().find(why), std::string::npos) << of(r).why_not();
    EXPECT_EQ(made(), 0u);
    EXPECT_EQ(of(0).count(), 0u);
  }

  static constexpr int kWorld = 3;
  Neighbours neighbours_{kWorld};
  std::vector<std::unique_ptr<PeerMemory>> met_ = neighbours_.bootstrap();
  size_t arenas_ = 0;
};

TEST_F(SymmetricBuffersTest, AllKnowEverybodysMemoryAndWhereTensorsLie) {
  const Held first = make(1000), second = make(64);
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_EQ(of(r).bytes(), 1064);
    const std::vector<char*> addresses = of(r).addresses(2);
    for (size_t p = 0; p < kWorld; ++p) EXPECT_EQ(addresses[p], second[p]->data());
    const auto found = of(r).find(second[static_cast<size_t>(r)]->data() + 16, 48);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->number, 2);
    EXPECT_EQ(found->at, 16);
  }
}

TEST_F(SymmetricBuffersTest, OnlyWholePacksAndTheEndOfABufferAreFound) {
  const Held held = make(1000);
  const char* const data = held[0]->data();
  EXPECT_TRUE(of(0).find(data, 1000)) << "its last pack is nobody else's";
  EXPECT_TRUE(of(0).find(data + 992, 8));
  EXPECT_FALSE(of(0).find(data, 1001));
  EXPECT_FALSE(of(0).find(data, 1008)) << "whole packs, and the last one ends behind the buffer";
  EXPECT_FALSE(of(0).find(data, 8)) << "the pack holds something else, too";
  EXPECT_FALSE(of(0).find(data + 8, 992));
  EXPECT_FALSE(of(0).find(data - 16, 16));
  EXPECT_FALSE(of(0).find(met_[0]->window(), 16));
}

TEST_F(SymmetricBuffersTest, WhatNobodyHoldsIsGivenBackOnceAllSaySo) {
  Held first = make(1000), second = make(1000);
  first[0].reset();
  reclaim();
  EXPECT_EQ(made(), 6u) << "ranks 1 and 2 hold it";
  first.clear();
  std::atomic<int> waited{0};
  neighbours_.on_wait = [&](int) { ++waited; };
  reclaim();
  EXPECT_EQ(waited, kWorld) << "what runs may still use it";
  EXPECT_EQ(made(), 3u);
  EXPECT_EQ(of(1).bytes(), 1000);
  EXPECT_THROW(of(1).addresses(1), Error);
  EXPECT_EQ(of(1).addresses(2)[2], second[2]->data());
}

TEST_F(SymmetricBuffersTest, MakingReclaims) {
  make(1000);
  const Held held = make(500);
  EXPECT_EQ(made(), 3u);
  EXPECT_EQ(of(0).find(held[0]->data(), 500)->number, 2) << "numbers are not used again";
}

TEST_F(SymmetricBuffersTest, WithoutMemoryOnOneRankNobodyHasAny) {
  neighbours_.forge = [](int rank, PeerInfo& info) {
    if (rank == 1) info = peer_info_without("CUDA: out of memory");
  };
  expect_refused(1000, "rank 1: CUDA: out of memory");
  neighbours_.forge = [](int, PeerInfo&) {};
  EXPECT_NE(make(1000)[1], nullptr) << "smaller, or later, there may be some";
}

TEST_F(SymmetricBuffersTest, WhatOneCannotMapNobodyUses) {
  devices.refuses_import = [](int device, const rd_gpu_handle&) { return device == 2; };
  expect_refused(1000, "rank 2: memory of rank 0: CUDA: importing is refused here");
}

TEST_F(SymmetricBuffersTest, DifferentSizesAreNamed) {
  std::vector<std::string> errors(kWorld);
  neighbours_.together([&](int r) {
    try {
      of(r).make(r == 2 ? 64 : 128, neighbours_.around(r));
    } catch (const Error& error) {
      errors[static_cast<size_t>(r)] = error.what();
    }
  });
  EXPECT_NE(errors[0].find("rank 0 allocates a symmetric buffer of 128 bytes, rank 2 one of 64"), std::string::npos)
      << errors[0];
  EXPECT_NE(errors[2].find("rank 2 allocates a symmetric buffer of 64 bytes, rank 0 one of 128"), std::string::npos)
      << errors[2];
}

TEST_F(SymmetricBuffersTest, ATensorOutlivesItsGroup) {
  Held held = make(1000);
  for (const auto& one : met_) one->teardown();
  met_.clear();
  EXPECT_EQ(count(), 3u);
  held[0]->data()[999] = 1;
}

TEST(SymmetricBuffers, MemoryThatAPeerMayStillMapIsKept) {
  Neighbours neighbours(2);
  auto met = neighbours.bootstrap();
  neighbours.together([&](int r) { met[static_cast<size_t>(r)]->buffers()->make(1000, neighbours.around(r)); });
  met[0].reset();  // rank 1 has not let go
  {
    const std::lock_guard<std::mutex> lock(devices.mutex);
    EXPECT_EQ(devices.memory.size(), 4u);
  }
  met[1].reset();
  const std::lock_guard<std::mutex> lock(devices.mutex);
  EXPECT_EQ(devices.memory.size(), 2u) << "rank 1's went: rank 0 had let go of it";
  devices.imports.clear();
  for (auto* const book : {&devices.memory, &devices.pinned}) {
    while (!book->empty()) testing::give_back(*book, book->begin()->first);
  }
}

// Its device could not be told that the group is over, so nobody reads callers' memory there.
TEST(SymmetricBuffers, ARankWhosePageIsNotMappedHasNone) {
  Neighbours neighbours(2);
  devices.fails = "host_map";
  auto met = neighbours.bootstrap();
  for (const auto& one : met) EXPECT_EQ(one->why_not(), "") << "windows serve";
  devices.fails.clear();
  neighbours.together(
      [&](int r) { EXPECT_EQ(met[static_cast<size_t>(r)]->buffers()->make(1000, neighbours.around(r)), nullptr); });
  EXPECT_EQ(met[1]->buffers()->why_not(), "rank 0: CUDA: host_map fails here");
  for (const auto& one : met) one->teardown();
  met.clear();
  EXPECT_TRUE(devices.all_is_given_back());
}

}  // namespace

}  // namespace ringdp::gpu
