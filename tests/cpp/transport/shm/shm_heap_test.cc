// The heaps that an arena's members map: one place for all, staggered, and longer-lived than the arena.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "transport/shm/local_arenas.h"

namespace ringdp::transport {
namespace {

using Arenas = std::vector<std::unique_ptr<ShmArena>>;

TEST(ShmHeap, TensorsInAHeapLieAtOnePlaceForAllMembers) {
  constexpr int kRanks = 3;
  const Arenas arenas = separately_mapped_arenas({kRanks, 64, 64, 1 << 20}, {});
  for (int rank = 0; rank < kRanks; ++rank) {
    std::byte* block = arenas[rank]->heap()->take(1000);
    std::memset(block, 10 + rank, 1000);
    const auto offset = block - arenas[rank]->heap_at(rank);
    ASSERT_GE(offset, 0);
    ASSERT_LE(offset + 1000, arenas[rank]->heap_bytes());
    for (const auto& arena : arenas) {
      EXPECT_EQ(arena->heap_at(rank)[offset], static_cast<std::byte>(10 + rank));
      EXPECT_EQ(arena->heap_at(rank)[offset + 999], static_cast<std::byte>(10 + rank));
    }
  }
}

TEST(ShmHeap, FirstBlocksOfMembersAreFarApartInACacheWay) {
  for (const int ranks : {2, 4, 8, 16}) {
    const Arenas arenas = make_local_arenas({ranks, 64, 64, 1 << 20});
    std::set<int64_t> places;
    for (int rank = 0; rank < ranks; ++rank) {
      places.insert((arenas[rank]->heap()->take(64) - arenas[rank]->heap_at(rank)) % 4096);
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(ranks));
    int64_t last = -4096;
    for (const int64_t place : places) {
      EXPECT_GE(place - last, 4096 / ranks);
      last = place;
    }
  }
}

TEST(ShmHeap, AHeapOutlivesItsArena) {
  Arenas arenas = make_local_arenas({2, 64, 64, 1 << 20});
  const std::shared_ptr<Heap> heap = arenas[1]->heap();
  arenas.clear();
  std::memset(heap->take(1 << 19), 7, 1 << 19);
  EXPECT_GE(heap->taken_bytes(), 1 << 19);
}

TEST(ShmHeap, PagesGoWithTheLastBlockWhenPeersAreDone) {
  for (const bool peers_are_done : {true, false}) {
    const Arenas arenas = separately_mapped_arenas({2, 64, 64, 1 << 20}, {});
    Heap& heap = *arenas[0]->heap();
    std::byte* const blocks[] = {heap.take(100'000), heap.take(100'000)};
    for (std::byte* block : blocks) std::memset(block, 1, 100'000);
    const std::byte* const seen = arenas[1]->heap_at(0) + (blocks[1] - arenas[0]->heap_at(0)) + 50'000;
    heap.release(blocks[0]);
    heap.close(peers_are_done);
    EXPECT_EQ(*seen, std::byte{1});
    heap.release(blocks[1]);
    EXPECT_EQ(*seen, peers_are_done ? std::byte{0} : std::byte{1}) << "fresh pages are zero";
  }
}

TEST(ShmHeap, AFencedBlockIsOutOfTheReachOfTheOthers) {
  const Arenas arenas = separately_mapped_arenas({2, 64, 64, 1 << 20}, {});
  std::byte* const block = arenas[0]->heap()->take(100'000);
  const int64_t offset = block - arenas[0]->heap_at(0);
  std::memset(block, 1, 100'000);
  arenas[0]->fence(offset, 100'000);
  std::memset(arenas[1]->heap_at(0) + offset, 2, 100'000);
  for (int64_t i = 0; i < 100'000; ++i) ASSERT_EQ(block[i], std::byte{0}) << i;
}

TEST(ShmHeap, RetiringIsSeenByAll) {
  const Arenas arenas = separately_mapped_arenas({3, 64, 64, 0}, {});
  arenas[1]->retire(7);
  for (const auto& arena : arenas) {
    for (int member = 0; member < 3; ++member) EXPECT_EQ(arena->retired(member), member == 1 ? 7 : 0);
  }
}

TEST(ShmHeap, WithoutHeapBytesThereIsNoHeap) {
  const Arenas arenas = make_local_arenas(2, 64, 64);
  EXPECT_EQ(arenas[0]->heap(), nullptr);
  EXPECT_EQ(arenas[0]->heap_bytes(), 0);
}

}  // namespace
}  // namespace ringdp::transport
