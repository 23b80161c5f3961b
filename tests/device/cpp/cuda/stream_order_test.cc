// Copies, calls and waits come in the order of their stream, and host memory has an address for devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "device/cpp/cuda/stand_in.h"

namespace ringdp::gpu::testing {
namespace {

TEST(StreamOrder, NothingPassesAWaitBeforeItsWordIsWritten) {
  Pinned word(4), from(64), to(64);
  TestStream stream;
  std::atomic<bool> called{false};
  succeed(gpu().await(static_cast<uint32_t*>(word.host), 1, stream.handle()));
  succeed(gpu().copy(to.host, from.host, 64, stream.handle()));
  succeed(gpu().call(
      stream.handle(), [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &called));
  static_cast<char*>(from.host)[63] = 'x';
  // The device has had its time once another stream has done as much.
  TestStream other;
  std::atomic<bool> other_called{false};
  succeed(gpu().call(
      other.handle(), [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &other_called));
  other.synchronize();
  EXPECT_TRUE(other_called);
  EXPECT_FALSE(called);
  EXPECT_EQ(static_cast<char*>(to.host)[63], 0);
  __atomic_store_n(static_cast<uint32_t*>(word.host), 1u, __ATOMIC_RELEASE);
  stream.synchronize();
  EXPECT_TRUE(called);
  EXPECT_EQ(static_cast<char*>(to.host)[63], 'x');
}

TEST(StreamOrder, WordsAreComparedCyclically) {
  Pinned word(4);
  TestStream stream;
  __atomic_store_n(static_cast<uint32_t*>(word.host), 3u, __ATOMIC_RELEASE);
  succeed(gpu().await(static_cast<uint32_t*>(word.host), 0xfffffff0u, stream.handle()));
  stream.synchronize();
}

TEST(StreamOrder, AWordIsWrittenBehindWhatComesBefore) {
  Pinned words(8);
  auto* const word = static_cast<uint32_t*>(words.host);
  TestStream stream, other;
  succeed(gpu().await(word, 1, stream.handle()));
  succeed(gpu().write(word + 1, 7, stream.handle()));
  succeed(gpu().copy(words.host, words.host, 8, other.handle()));
  other.synchronize();
  EXPECT_EQ(__atomic_load_n(word + 1, __ATOMIC_ACQUIRE), 0u);
  __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
  stream.synchronize();
  EXPECT_EQ(__atomic_load_n(word + 1, __ATOMIC_ACQUIRE), 7u);
}

// Whether or not their addresses meet.
TEST(StreamOrder, ACopyOfTwoAllocationsIsRefused) {
  constexpr size_t kBytes = 2 << 20;
  TestStream stream;
  char* memory[2] = {};
  for (char*& one : memory) succeed(gpu().alloc(0, kBytes, RD_GPU_SHARE_AUTO, reinterpret_cast<void**>(&one)));
  char* const lower = std::min(memory[0], memory[1]);
  EXPECT_EQ(lower + kBytes, std::max(memory[0], memory[1])) << "nothing lies between them";
  Pinned target(2 * kBytes);
  EXPECT_EQ(gpu().copy(target.host, lower, kBytes, stream.handle()), 0);
  EXPECT_NE(refused(gpu().copy(target.host, lower, kBytes + 1, stream.handle())).find("invalid argument"),
            std::string::npos);
  EXPECT_NE(refused(gpu().copy(lower, target.host, 2 * kBytes, stream.handle())).find("invalid argument"),
            std::string::npos);
  stream.synchronize();
  for (char* const one : memory) succeed(gpu().free(one));
}

TEST(StreamOrder, AHostFunctionMayNotCallTheDevice) {
  TestStream stream;
  int result = 0;
  succeed(gpu().call(
      stream.handle(),
      [](void* out) {
        int count = 0;
        *static_cast<int*>(out) = gpu().count(&count);
      },
      &result));
  stream.synchronize();
  EXPECT_NE(result, 0);
}

TEST(HostMemory, DevicesHaveAnAddressOfTheirOwn) {
  Pinned memory(100);
  EXPECT_NE(memory.host, memory.device);
  static_cast<char*>(memory.device)[99] = 'x';
  EXPECT_EQ(static_cast<char*>(memory.host)[99], 'x');
  alignas(4096) static char page[4096];
  void* mapped = nullptr;
  succeed(gpu().host_map(page, sizeof page, &mapped));
  EXPECT_NE(refused(gpu().host_map(page, sizeof page, &mapped)).find("already mapped"), std::string::npos);
  succeed(gpu().host_unmap(page));
  EXPECT_NE(refused(gpu().host_unmap(page)).find("once"), std::string::npos);
  EXPECT_NE(refused(gpu().host_free(page)).find("once"), std::string::npos);
}

TEST(Device, EachIsDescribed) {
  int count = 0;
  succeed(gpu().count(&count));
  ASSERT_EQ(count, 2);
  rd_gpu_device first, second;
  succeed(gpu().describe(0, &first));
  succeed(gpu().describe(1, &second));
  EXPECT_NE(std::string(first.name), second.name);
  EXPECT_NE(std::string(first.uuid, first.uuid + 16), std::string(second.uuid, second.uuid + 16));
  EXPECT_TRUE(first.waits_on_streams && first.shares_fds && first.multiprocessors > 0);
  EXPECT_NE(refused(gpu().describe(2, &first)).find("invalid device ordinal"), std::string::npos);
}

}  // namespace
}  // namespace ringdp::gpu::testing
