#include "transport/heap.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::transport {
namespace {

constexpr int64_t kBytes = 1 << 16, kPage = 4096;

struct Range {
  std::shared_ptr<std::vector<std::byte>> owner = std::make_shared<std::vector<std::byte>>(kBytes + Heap::kAlignment);
  std::byte* base = owner->data() + (-reinterpret_cast<uintptr_t>(owner->data())) % Heap::kAlignment;
  Heap heap{owner, base, kBytes};
};

std::string refusal(Heap& heap, int64_t bytes) {
  try {
    heap.take(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Heap, BlocksAreAlignedInsideAndApart) {
  Range range;
  std::mt19937_64 random(1);
  std::map<std::byte*, int64_t> blocks;
  for (int turn = 0; turn < 20'000; ++turn) {
    const auto bytes = static_cast<int64_t>(random() % 3000);
    if (random() % 2 == 0 && refusal(range.heap, bytes + kBytes).empty()) ADD_FAILURE();
    if (random() % 2 == 0 && !blocks.empty()) {
      const auto gone = std::next(blocks.begin(), static_cast<int64_t>(random() % blocks.size()));
      range.heap.release(gone->first);
      blocks.erase(gone);
    } else if (range.heap.taken_bytes() < kBytes / 4) {
      std::byte* block = range.heap.take(bytes);
      ASSERT_EQ((block - range.base) % Heap::kAlignment, 0);
      ASSERT_GE(block, range.base);
      ASSERT_LE(block + bytes, range.base + kBytes);
      const auto next = blocks.lower_bound(block);
      ASSERT_TRUE(next == blocks.end() || block + bytes <= next->first);
      ASSERT_TRUE(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= block);
      blocks[block] = std::max<int64_t>(bytes, 1);
    }
  }
  for (const auto& [block, bytes] : blocks) range.heap.release(block);
  EXPECT_EQ(range.heap.taken_bytes(), 0);
  EXPECT_EQ(range.heap.take(kBytes - 2 * kPage), range.base + kPage) << "freed ranges were not joined again";
}

// A fence cuts off whole pages: it must not take a neighbour with it.
TEST(Heap, BlocksOfAPageOrMoreShareTheirPagesWithNobody) {
  Range range;
  std::vector<std::pair<int64_t, int64_t>> pages;  // first and last of each block
  for (const int64_t bytes : {100, 4096, 64, 5000, 4097, 4095, 9000, 64}) {
    const auto begin = reinterpret_cast<intptr_t>(range.heap.take(bytes));
    const std::pair<int64_t, int64_t> own{begin / kPage, (begin + bytes - 1) / kPage};
    for (const auto& [first, last] : bytes >= kPage ? pages : std::vector<std::pair<int64_t, int64_t>>{}) {
      EXPECT_TRUE(own.second < first || last < own.first) << bytes;
    }
    pages.push_back(own);
  }
}

TEST(Heap, ReusesTheLowestAddress) {
  Range range;
  std::byte* first = range.heap.take(100);
  std::byte* second = range.heap.take(100);
  range.heap.take(100);
  range.heap.release(second);
  range.heap.release(first);
  EXPECT_EQ(range.heap.take(200), first);
}

TEST(Heap, SaysWhatWasAskedForAndWhatIsTaken) {
  Range range;
  range.heap.take(1000);
  const std::string said = refusal(range.heap, kBytes);
  for (const auto& part : {std::to_string(kBytes), std::to_string(1024), std::string("heap_bytes")}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  EXPECT_NE(refusal(range.heap, INT64_MAX), "");
}

TEST(Heap, RefusesToReleaseWhatWasNotTaken) {
  Range range;
  std::byte* block = range.heap.take(100);
  range.heap.release(block);
  EXPECT_THROW(range.heap.release(block), Error);
}

TEST(Heap, KeepsItsMemoryAlive) {
  auto owner = std::make_shared<std::vector<std::byte>>(kBytes);
  const std::weak_ptr<std::vector<std::byte>> watched = owner;
  auto heap = std::make_unique<Heap>(owner, owner->data(), kBytes);
  owner.reset();
  EXPECT_FALSE(watched.expired());
  heap.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(Heap, GivesNothingOnceItsGroupIsGoneAndKeepsWhatIsTaken) {
  Range range;
  std::byte* const block = range.heap.take(100);
  range.heap.close(/*peers_are_done=*/false);
  EXPECT_NE(refusal(range.heap, 1).find("gone with its process group"), std::string::npos);
  EXPECT_EQ(range.heap.taken_bytes(), 128);
  range.heap.release(block);
  EXPECT_EQ(range.heap.taken_bytes(), 0);
}

TEST(Heap, AnotherGroupAdoptsWhatWasOffered) {
  Range range;
  EXPECT_FALSE(range.heap.adopt()) << "it belongs to a group";
  std::byte* const block = range.heap.take(100);
  range.heap.close(/*peers_are_done=*/false);
  EXPECT_FALSE(range.heap.adopt()) << "peers may still write";
  range.heap.offer();
  EXPECT_NE(refusal(range.heap, 1), "");
  EXPECT_TRUE(range.heap.adopt());
  EXPECT_FALSE(range.heap.adopt()) << "it belongs to the next group";
  EXPECT_EQ(range.heap.taken_bytes(), 128);
  EXPECT_NE(range.heap.take(100), block);
}

TEST(Heap, IsNotAdoptedWherePeersAccessItAtAnyTimeOrDoNotSeeAllOfIt) {
  for (const bool is_late : {false, true}) {
    Range range;
    range.heap.take(100);
    if (!is_late) range.heap.forbid_adoption();
    range.heap.offer();
    if (is_late) range.heap.forbid_adoption();
    EXPECT_FALSE(range.heap.adopt());
  }
}

TEST(Heap, IsAdoptedWhereItOnlyKeepsItsPages) {
  Range range;
  range.heap.take(100);
  range.heap.keep_pages();
  range.heap.offer();
  EXPECT_TRUE(range.heap.adopt());
}

TEST(Heap, ThreadsNeverGetTheSameBlock) {
  Range range;
  const auto fill = [&](int mark) {
    for (int turn = 0; turn < 500; ++turn) {
      std::byte* block = range.heap.take(1000);
      std::fill_n(block, 1000, static_cast<std::byte>(mark));
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(block[i], static_cast<std::byte>(mark));
      range.heap.release(block);
    }
  };
  std::vector<std::thread> threads;
  for (int mark = 1; mark <= 3; ++mark) threads.emplace_back(fill, mark);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(range.heap.taken_bytes(), 0);
}

TEST(Heap, AForkedChildGetsNothingAndMayForgetItsTensors) {
  Range range;
  std::byte* block = range.heap.take(64);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    range.heap.release(block);
    range.heap.offer();
    ::_exit(refusal(range.heap, 64).empty() || range.heap.adopt() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(range.heap.taken_bytes(), 64);
}

// The heaps of an arena's members: mapped by all, staggered, and alive longer than the arena.

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
  std::byte* const block = heap->take(1 << 19);
  arenas.clear();
  std::memset(block, 7, 1 << 19);
  EXPECT_GE(heap->taken_bytes(), 1 << 19);
}

TEST(ShmHeap, PagesGoWithTheLastBlockWhenPeersAreDone) {
  for (const auto& [peers_are_done, keeps_pages] : {std::pair(true, false), {false, false}, {true, true}}) {
    const Arenas arenas = separately_mapped_arenas({2, 64, 64, 1 << 20}, {});
    Heap& heap = *arenas[0]->heap();
    std::byte* const blocks[] = {heap.take(100'000), heap.take(100'000)};
    for (std::byte* block : blocks) std::memset(block, 1, 100'000);
    const std::byte* const seen = arenas[1]->heap_at(0) + (blocks[1] - arenas[0]->heap_at(0)) + 50'000;
    heap.release(blocks[0]);
    if (keeps_pages) heap.keep_pages();
    heap.close(peers_are_done);
    EXPECT_EQ(*seen, std::byte{1});
    heap.release(blocks[1]);
    EXPECT_EQ(*seen, peers_are_done && !keeps_pages ? std::byte{0} : std::byte{1}) << "fresh pages are zero";
  }
}

TEST(ShmHeap, AFencedBlockIsOutOfTheReachOfTheOthers) {
  const Arenas arenas = separately_mapped_arenas({2, 64, 64, 1 << 20}, {});
  std::byte* const block = arenas[0]->heap()->take(100'000);
  const int64_t offset = block - arenas[0]->heap_at(0);
  std::memset(block, 1, 100'000);
  arenas[0]->fence(offset, 100'000);
  arenas[0]->give_heap_back();
  EXPECT_FALSE(arenas[0]->heap()->adopt()) << "the others do not see that block any more";
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
