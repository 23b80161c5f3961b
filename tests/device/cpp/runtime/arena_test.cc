// The page of host memory that a rank shares: whole pages of its heap, zeros at first, given back at the end.
#include "device/runtime/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "device/cpp/runtime/host_functions.h"

namespace ringdp::gpu {

namespace {

using testing::devices;

constexpr int64_t kHeapBytes = 4 << 20;

struct UsedHeap {
  std::byte* const base = static_cast<std::byte*>(std::aligned_alloc(4096, kHeapBytes));
  const std::shared_ptr<transport::Heap> heap = std::make_shared<transport::Heap>(nullptr, base, kHeapBytes);

  UsedHeap() { std::memset(base, 0x5a, kHeapBytes); }  // as if it had been used
  ~UsedHeap() { std::free(base); }
};

TEST(HostPages, IsWholePagesOfZerosInTheHeap) {
  const UsedHeap memory;
  memory.heap->take(100);  // so that it does not begin where the heap does
  const OwnPage own(memory.heap, memory.base, nullptr);
  EXPECT_EQ(own.offset() % 4096, 0);
  EXPECT_EQ(OwnPage::bytes() % 4096, 0);
  EXPECT_LE(own.offset() + OwnPage::bytes(), kHeapBytes);
  EXPECT_EQ(reinterpret_cast<std::byte*>(&own.page()), memory.base + own.offset());
  const auto* const bytes = memory.base + own.offset();
  EXPECT_TRUE(std::all_of(bytes, bytes + sizeof(HostPage), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(HostPages, GoesBackToTheHeap) {
  const UsedHeap memory;
  {
    const OwnPage own(memory.heap, memory.base, nullptr);
    EXPECT_GE(memory.heap->taken_bytes(), OwnPage::bytes());
  }
  EXPECT_EQ(memory.heap->taken_bytes(), 0);
}

TEST(HostPages, AFullHeapIsAnError) {
  const UsedHeap memory;
  memory.heap->take(kHeapBytes - OwnPage::bytes());
  EXPECT_THROW(OwnPage(memory.heap, memory.base, nullptr), Error);
}

TEST(HostPages, AllAreMappedOrNone) {
  const UsedHeap memory;
  const OwnPage a(memory.heap, memory.base, nullptr), b(memory.heap, memory.base, nullptr);
  const Functions functions = testing::host_functions();
  testing::reset_devices();
  {
    const MappedPages mapped(functions, {&a.page(), &b.page()});
    EXPECT_EQ(devices.mapped.size(), 2u);
    EXPECT_EQ(mapped.on_device(1), &b.page()) << "these devices see the host's addresses";
  }
  EXPECT_TRUE(devices.mapped.empty());
  Functions second_fails = functions;
  second_fails.host_map = [](void* host, size_t bytes, void** on_device) {
    if (!devices.mapped.empty()) return testing::refuse_import();
    devices.mapped[host] = bytes;
    *on_device = host;
    return 0;
  };
  EXPECT_THROW(MappedPages(second_fails, {&a.page(), &b.page()}), Error);
  EXPECT_TRUE(devices.mapped.empty());
}

}  // namespace

// The parts of a rank's device memory lie apart, and what cannot be had leaves nothing behind.

namespace {

TEST(Arena, PartsFollowOneAnotherAndAreAligned) {
  for (const int world : {1, 2, 8}) {
    for (const int64_t window : {int64_t{1} << 20, (int64_t{1} << 20) + 1, int64_t{1} << 30}) {
      const ArenaLayout layout = ArenaLayout::of(window, world);
      EXPECT_GE(layout.window, window);
      EXPECT_EQ(layout.stage, layout.window);
      EXPECT_EQ(layout.pushed, layout.stage + layout.stage_bytes);
      EXPECT_EQ(layout.flags, layout.pushed + 2 * world * layout.pushed_bytes) << "two parities, a part per writer";
      EXPECT_EQ(layout.epoch, layout.flags + static_cast<int64_t>(sizeof(Flags)));
      EXPECT_GE(layout.bytes, layout.epoch + static_cast<int64_t>(sizeof(Epoch)));
      for (const int64_t place : {layout.stage, layout.pushed, layout.pushed_bytes, layout.flags, layout.epoch}) {
        EXPECT_EQ(place % 128, 0);
      }
    }
  }
}

TEST(Arena, TakesAndGivesBack) {
  testing::reset_devices();
  const Functions functions = testing::host_functions();
  {
    const Arena arena(functions, 0, ArenaLayout::of(1 << 20, 2), RD_GPU_SHARE_FD);
    EXPECT_EQ(arena.signals().abort, 0u);
    EXPECT_EQ(arena.abort_on_device(), &arena.signals().abort) << "these devices see the host's addresses";
    UniqueFd fd;
    EXPECT_EQ(arena.handle(&fd).needs_fd, 1);
    EXPECT_TRUE(fd);
    EXPECT_FALSE(devices.all_is_given_back());
  }
  EXPECT_TRUE(devices.all_is_given_back());
}

TEST(Arena, WithoutMemoryThereIsNothing) {
  const Functions functions = testing::host_functions();
  for (const char* const failing : {"alloc", "host_alloc"}) {
    testing::reset_devices();
    devices.fails = failing;
    EXPECT_THROW(Arena(functions, 0, ArenaLayout::of(1 << 20, 2), RD_GPU_SHARE_AUTO), Error) << failing;
    EXPECT_TRUE(devices.all_is_given_back()) << failing;
  }
}

}  // namespace

}  // namespace ringdp::gpu
