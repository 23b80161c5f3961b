// Memory that ranks share: what is given, who may map it, how often, and in which order it goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "device/cpp/cuda/ranks.h"

namespace ringdp::gpu::testing {

namespace {

void* allocated(size_t bytes, int sharing) {
  void* memory = nullptr;
  succeed(gpu().alloc(0, bytes, sharing, &memory));
  return memory;
}

class BothWays : public ::testing::TestWithParam<int> {};

TEST_P(BothWays, MemoryIsZeroAndOfItsDevice) {
  char* const memory = static_cast<char*>(allocated(5000, GetParam()));
  EXPECT_TRUE(std::all_of(memory, memory + 5000, [](char byte) { return byte == 0; }));
  std::fill_n(memory, 5000, 'x');
  succeed(gpu().free(memory));
  char* const again = static_cast<char*>(allocated(5000, GetParam()));
  EXPECT_TRUE(std::all_of(again, again + 5000, [](char byte) { return byte == 0; }));
  succeed(gpu().free(again));
}

TEST_P(BothWays, InItsOwnProcessAnImportIsCountedAndHoldsTheMemory) {
  char* const memory = static_cast<char*>(allocated(1 << 22, GetParam()));
  rd_gpu_handle handle;
  int fd = -1;
  succeed(gpu().export_memory(memory + 4096, &handle, &fd));
  EXPECT_EQ(handle.needs_fd != 0, GetParam() == RD_GPU_SHARE_FD);
  void *first = nullptr, *second = nullptr;
  succeed(gpu().import_memory(1, &handle, fd, &first));
  succeed(gpu().import_memory(0, &handle, fd, &second));
  EXPECT_EQ(first, memory + 4096);
  EXPECT_EQ(second, memory + 4096);
  succeed(gpu().unimport_memory(first));
  EXPECT_NE(refused(gpu().free(memory)).find("imported 1 times"), std::string::npos);
  succeed(gpu().unimport_memory(second));
  EXPECT_NE(refused(gpu().unimport_memory(second)).find("unmapped already"), std::string::npos);
  succeed(gpu().free(memory));
  if (fd >= 0) close(fd);
}

// Ranks may be threads of one process, with a device each.
TEST_P(BothWays, AnotherDeviceOfThisProcessReachesWhatItImports) {
  char* const memory = static_cast<char*>(allocated(4096, GetParam()));
  rd_gpu_handle handle;
  int fd = -1;
  void* imported = nullptr;
  succeed(gpu().export_memory(memory, &handle, &fd));
  succeed(gpu().import_memory(1, &handle, fd, &imported));
  set_device(1);
  {
    const TestStream stream;
    const Pinned abort(sizeof(uint32_t));
    *static_cast<uint32_t*>(abort.host) = 1;
    succeed(gpu().poison(imported, 4096, static_cast<const uint32_t*>(abort.device), stream.handle()));
    stream.synchronize();
  }
  EXPECT_FALSE(control<bool(int)>("stand_in_is_lost")(1));
  set_device(0);
  EXPECT_EQ(memory[4095], static_cast<char>(~0));
  succeed(gpu().unimport_memory(imported));
  succeed(gpu().free(memory));
  if (fd >= 0) close(fd);
}

// What lets another device access memory may wait for the device, too.
TEST_P(BothWays, WhoseImportWaitsInTheDriverHoldsUpNobody) {
  void *const memory = allocated(4096, GetParam()), *imported = nullptr;
  rd_gpu_handle handle;
  int fd = -1;
  succeed(gpu().export_memory(memory, &handle, &fd));
  control<void(const char*)>("stand_in_hold_call")(GetParam() == RD_GPU_SHARE_FD ? "cuMemSetAccess"
                                                                                 : "cudaDeviceCanAccessPeer");
  std::future<int> import =
      std::async(std::launch::async, [&] { return gpu().import_memory(1, &handle, fd, &imported); });
  control<void()>("stand_in_wait_for_held_call")();
  std::future<std::string> other = std::async(std::launch::async, [&] {
    void* const second = allocated(4096, GetParam());
    rd_gpu_handle its_handle;
    int its_fd = -1;
    succeed(gpu().export_memory(second, &its_handle, &its_fd));
    if (its_fd >= 0) close(its_fd);
    succeed(gpu().free(second));
    return refused(gpu().free(memory));
  });
  EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  control<void()>("stand_in_let_go_call")();
  EXPECT_NE(other.get().find("imported 1 times"), std::string::npos);
  EXPECT_EQ(import.get(), 0);
  succeed(gpu().unimport_memory(imported));
  succeed(gpu().free(memory));
  if (fd >= 0) close(fd);
}

// It would take memory of a device that this process may not use.
TEST_P(BothWays, AThreadWithoutAContextIsLeftWithoutOne) {
  int context = 0;
  std::thread([&] {
    void *memory = nullptr, *imported = nullptr;
    rd_gpu_handle handle;
    int fd = -1;
    succeed(gpu().alloc(1, 4096, GetParam(), &memory));
    succeed(gpu().export_memory(memory, &handle, &fd));
    succeed(gpu().import_memory(1, &handle, fd, &imported));
    succeed(gpu().unimport_memory(imported));
    succeed(gpu().free(memory));
    if (fd >= 0) close(fd);
    context = control<int()>("stand_in_context")();
  }).join();
  EXPECT_EQ(context, -1);
}

INSTANTIATE_TEST_SUITE_P(Sharing, BothWays, ::testing::Values(RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD));

// Whatever is thrown on the way, later importers do not wait for who has failed.
TEST(SharedMemory, AHostWithoutMemoryLeavesNothingHalfDone) {
  const auto exhaust = [](const char* call) { control<void(const char*)>("stand_in_exhaust")(call); };
  void *const memory = allocated(4096, RD_GPU_SHARE_FD), *imported = nullptr;
  rd_gpu_handle handle;
  int fd = -1;
  succeed(gpu().export_memory(memory, &handle, &fd));
  exhaust("cuMemSetAccess");
  EXPECT_NE(refused(gpu().import_memory(1, &handle, fd, &imported)).find("bad_alloc"), std::string::npos);
  exhaust("cuMemUnmap");
  EXPECT_NE(refused(gpu().free(memory)).find("bad_alloc"), std::string::npos) << "it is not imported";
  handle.key[0] ^= 1;  // as if another process had sent it
  exhaust("cuMemImportFromShareableHandle");
  EXPECT_NE(refused(gpu().import_memory(0, &handle, fd, &imported)).find("bad_alloc"), std::string::npos);
  const auto import = [&] { return gpu().import_memory(0, &handle, fd, &imported); };
  std::future<int> again = std::async(std::launch::async, import);
  ASSERT_EQ(again.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "the first is waited for";
  EXPECT_EQ(again.get(), 0);
  exhaust("cuMemUnmap");
  EXPECT_NE(refused(gpu().unimport_memory(imported)).find("bad_alloc"), std::string::npos);
  again = std::async(std::launch::async, import);
  ASSERT_EQ(again.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "the first is waited for";
  EXPECT_EQ(again.get(), 0);
  succeed(gpu().unimport_memory(imported));
  if (fd >= 0) close(fd);
}

TEST(SharedMemory, MoreThanADeviceHasIsRefusedWithTheWayOut) {
  void* memory = nullptr;
  EXPECT_NE(refused(gpu().alloc(0, size_t{1} << 40, RD_GPU_SHARE_AUTO, &memory)).find("out of memory"),
            std::string::npos);
  EXPECT_NE(refused(gpu().alloc(7, 1, RD_GPU_SHARE_AUTO, &memory)).find("invalid device ordinal"), std::string::npos);
}

TEST(SharedMemory, ADeviceThatCannotReachAnotherIsNamed) {
  constexpr char kLacks[] = "STAND_IN_LACKS";
  if (birth_of_this_process()) {
    for (const auto& [sharing, why] : {std::pair(RD_GPU_SHARE_AUTO, "device 1 cannot access memory of device 0"),
                                       std::pair(RD_GPU_SHARE_FD, "cuMemSetAccess")}) {
      rd_gpu_handle handle;
      int fd = -1;
      void *const memory = allocated(4096, sharing), *imported = nullptr;
      succeed(gpu().export_memory(memory, &handle, &fd));
      EXPECT_NE(refused(gpu().import_memory(1, &handle, fd, &imported)).find(why), std::string::npos);
      succeed(gpu().free(memory));  // it is not imported
      if (fd >= 0) close(fd);
    }
    return;
  }
  RankCase one;
  one.world = 1;
  setenv(kLacks, "peers", 1);
  Processes alone(one, "SharedMemory.ADeviceThatCannotReachAnotherIsNamed");
  unsetenv(kLacks);
  EXPECT_EQ(alone.statuses(), std::vector<int>{0});
}

// The driver would wait for it, so nothing is unmapped or freed after it.
TEST(SharedMemory, ACopyThatDoesNotEndIsLeft) {
  constexpr char kLacks[] = "STAND_IN_LACKS";
  if (const auto birth = birth_of_this_process()) {
    ProcessExchange exchange(*birth);
    void* const own = allocated(4096, birth->one.sharing);
    Share mine{};
    succeed(gpu().export_memory(own, &mine.handle, &mine.fd));
    const Share theirs = exchange.all(mine)[1 - birth->rank];
    void *memory = nullptr, *host = nullptr, *on_device = nullptr;
    succeed(gpu().host_alloc(64, &host, &on_device));
    succeed(gpu().copy_now(0, host, own, 64));
    succeed(gpu().import_memory(0, &theirs.handle, theirs.fd, &memory));
    EXPECT_EQ(gpu().copy_now(0, host, memory, 64), RD_GPU_LATE);
    EXPECT_NE(std::string(gpu().error()).find("cudaMemcpyAsync(64 bytes) has not ended after 5 seconds"),
              std::string::npos);
    succeed(gpu().unimport_memory(memory));
    succeed(gpu().host_free(host));
    succeed(gpu().free(own));
    exchange.bootstrap();
    return;
  }
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    RankCase one;
    one.sharing = sharing;
    setenv(kLacks, "peer_copies", 1);
    Processes both(one, "SharedMemory.ACopyThatDoesNotEndIsLeft");
    unsetenv(kLacks);
    EXPECT_EQ(both.statuses(), (std::vector<int>{0, 0})) << sharing;
  }
}

// The driver may free only once the device is idle, for which another thread may have to share memory first.
TEST(SharedMemory, WhoFreesWhileTheDeviceIsBusyHoldsUpNobody) {
  Pinned word(4);
  TestStream stream;
  void *const first = allocated(4096, RD_GPU_SHARE_AUTO), *second = nullptr;
  succeed(gpu().await(static_cast<uint32_t*>(word.host), 1, stream.handle()));
  std::future<int> freed = std::async(std::launch::async, [&] { return gpu().free(first); });
  EXPECT_EQ(freed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout) << "the device is not busy";
  std::future<int> shared = std::async(std::launch::async, [&] {
    rd_gpu_handle handle;
    int fd = -1;
    succeed(gpu().alloc(0, 4096, RD_GPU_SHARE_AUTO, &second));
    return gpu().export_memory(second, &handle, &fd);
  });
  EXPECT_EQ(shared.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  __atomic_store_n(static_cast<uint32_t*>(word.host), 1u, __ATOMIC_RELEASE);
  EXPECT_EQ(freed.get(), 0);
  EXPECT_EQ(shared.get(), 0);
  succeed(gpu().free(second));
}

// Rank 1 maps what rank 0 has, twice; rank 0 may not free it before.
void lend(ProcessExchange& exchange, int sharing) {
  char* const memory = static_cast<char*>(allocated(1 << 22, sharing));
  Share share{};
  succeed(gpu().export_memory(memory + 512, &share.handle, &share.fd));
  std::fill_n(memory + 512, 100, 'a');
  exchange.all(share);
  exchange.bootstrap();
  EXPECT_EQ(memory[512], 'b');
  if (sharing == RD_GPU_SHARE_AUTO) {
    EXPECT_NE(refused(gpu().free(memory)).find("cannot be performed"), std::string::npos);
  }
  exchange.bootstrap();
  exchange.bootstrap();
  succeed(gpu().free(memory));
}

void borrow(ProcessExchange& exchange) {
  const Share share = exchange.all({{}, -1})[0];
  void *first = nullptr, *second = nullptr;
  succeed(gpu().import_memory(0, &share.handle, share.fd, &first));
  succeed(gpu().import_memory(0, &share.handle, share.fd, &second));
  EXPECT_EQ(first, second);
  EXPECT_EQ(static_cast<char*>(first)[99], 'a');
  static_cast<char*>(first)[0] = 'b';
  exchange.bootstrap();
  exchange.bootstrap();
  succeed(gpu().unimport_memory(first));
  EXPECT_EQ(static_cast<char*>(second)[0], 'b');
  succeed(gpu().unimport_memory(second));
  exchange.bootstrap();
}

TEST(SharedMemory, AnotherProcessMapsItUntilItGivesItBack) {
  if (const auto birth = birth_of_this_process()) {
    ProcessExchange exchange(*birth);
    return birth->rank == 0 ? lend(exchange, birth->one.sharing) : borrow(exchange);
  }
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    RankCase one;
    one.sharing = sharing;
    Processes both(one, "SharedMemory.AnotherProcessMapsItUntilItGivesItBack");
    EXPECT_EQ(both.statuses(), (std::vector<int>{0, 0})) << sharing;
  }
}

}  // namespace

// Plans run by ranks that are processes, over memory that they share both ways.

namespace {

constexpr char kItself[] = "Processes.GiveTheBitsOfTheSerialFold";

TEST(Processes, GiveTheBitsOfTheSerialFold) {
  if (const auto birth = birth_of_this_process()) {
    ProcessExchange exchange(*birth);
    StreamFlags flags(birth->flags);
    GpuRank rank(birth->one, birth->rank, exchange, flags);
    EXPECT_EQ(rank.run(), "");
    return;
  }
  using plan::DeviceAlgorithm;
  for (const int world : {1, 2, 4}) {
    for (const auto& [algorithm, executor, sharing] :
         {std::tuple(DeviceAlgorithm::kDirect, RD_GPU_STREAM, RD_GPU_SHARE_AUTO),
          std::tuple(DeviceAlgorithm::kRankRing, RD_GPU_STREAM, RD_GPU_SHARE_FD),
          std::tuple(DeviceAlgorithm::kOneShot, RD_GPU_SPIN, RD_GPU_SHARE_FD),
          std::tuple(DeviceAlgorithm::kPush, RD_GPU_SPIN, RD_GPU_SHARE_AUTO)}) {
      RankCase one;
      one.world = world;
      one.algorithm = algorithm;
      one.executor = executor;
      one.sharing = sharing;
      one.one_device = executor == RD_GPU_STREAM;
      EXPECT_EQ(Processes(one, kItself).statuses(), std::vector<int>(world)) << world << " " << name_of(algorithm);
    }
  }
}

}  // namespace

}  // namespace ringdp::gpu::testing
