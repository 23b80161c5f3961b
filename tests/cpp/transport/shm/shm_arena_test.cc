#include "transport/shm/shm_arena.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "long_tests.h"
#include "transport/shm/local_arenas.h"
#include "transport/thrown.h"

namespace ringdp::transport {
namespace {

constexpr int kHangMs = 60'000;  // a guard against hanging, not a time that is tested

using Arenas = std::vector<std::unique_ptr<ShmArena>>;

bool readable(const Doorbell& bell, int wait_ms) {
  pollfd polled{bell.fd(), POLLIN, 0};
  return ::poll(&polled, 1, wait_ms) == 1;
}

// N arenas and the doorbells of their drivers.
struct Ranks {
  Ranks(int ranks, bool separately_mapped) : bells(ranks) {
    std::vector<Doorbell*> rung;
    for (Doorbell& bell : bells) rung.push_back(&bell);
    arenas =
        separately_mapped ? separately_mapped_arenas({ranks, 64, 64}, rung) : make_local_arenas(ranks, 64, 64, rung);
  }

  // What a driver does at a wait: a few looks, then the sleep protocol. False when no wake-up came.
  bool wait(int rank, uint64_t barrier, int looks) {
    ShmArena& arena = *arenas[rank];
    for (; looks > 0; --looks) {
      if (arena.passed(barrier)) return true;
      std::this_thread::yield();
    }
    while (!arena.passed(barrier)) {
      arena.set_asleep(true);
      const bool woken = arena.passed(barrier) || readable(bells[rank], kHangMs);
      arena.set_asleep(false);
      bells[rank].drain();
      if (!woken) return false;
    }
    return true;
  }

  std::vector<Doorbell> bells;
  Arenas arenas;
};

uint64_t stamp(int rank, uint64_t barrier) { return barrier * 1000 + rank; }

Header header_with(uint64_t value) {
  Header header{};
  for (size_t at = 0; at < kHeaderBytes; at += sizeof value) std::memcpy(header.bytes + at, &value, sizeof value);
  return header;
}

bool same(const Header& a, const Header& b) { return std::memcmp(a.bytes, b.bytes, kHeaderBytes) == 0; }

// Every rank stamps its slot and header, arrives, waits, and looks at all the others'. A barrier that passes early
// shows as an old stamp, one that lets a rank run ahead by two as a new one (and both as a race under thread
// sanitizers).
void stamp_and_look(Ranks& ranks, int rank, uint64_t barriers, int looks) {
  ShmArena& arena = *ranks.arenas[rank];
  uint64_t wrong = 0;
  for (uint64_t k = 1; k <= barriers; ++k) {
    const uint64_t mine = stamp(rank, k);
    std::memcpy(arena.slot(rank, k % 2), &mine, sizeof mine);
    arena.post_header(k, header_with(mine));
    arena.arrive();
    ASSERT_TRUE(ranks.wait(rank, k, looks)) << "lost wake-up of rank " << rank << " at barrier " << k;
    for (int member = 0; member < arena.size(); ++member) {
      uint64_t theirs = 0;
      std::memcpy(&theirs, arena.slot(member, k % 2), sizeof theirs);
      wrong += theirs != stamp(member, k);
      wrong += arena.last_header(member) < k || !same(arena.header(member, k), header_with(stamp(member, k)));
    }
  }
  EXPECT_EQ(wrong, 0u) << "at rank " << rank;
}

class ShmArenaBarrier : public testing::TestWithParam<int> {
 protected:
  void run(int looks, uint64_t barriers) {
    Ranks ranks(GetParam(), /*separately_mapped=*/false);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam(); ++rank) {
      threads.emplace_back([&, rank] { stamp_and_look(ranks, rank, barriers, looks); });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(ShmArenaBarrier, HoldsWhenEveryRankSleepsAtOnce) { run(/*looks=*/0, 8000 / GetParam()); }
TEST_P(ShmArenaBarrier, HoldsWhenRanksLookBeforeTheySleep) { run(/*looks=*/20, 4000 / GetParam()); }

std::vector<int> members() {
  std::vector<int> all = {1, 2, 3, 4, 8, 16};
  if (long_tests()) all.insert(all.end(), {5, 6, 7, 9, 10, 11, 12, 13, 14, 15});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ranks, ShmArenaBarrier, testing::ValuesIn(members()));

// No barrier lies between posting a header and looking at it; without a release this is a race under thread sanitizers.
TEST(ShmArena, ANoteThatIsSeenIsWhole) {
  constexpr uint64_t kHeaders = 2000;
  Ranks ranks(2, /*separately_mapped=*/false);
  const auto exchange = [&ranks](int rank) {
    ShmArena& arena = *ranks.arenas[rank];
    uint64_t wrong = 0;
    for (uint64_t k = 1; k <= kHeaders; ++k) {
      arena.post_header(k, header_with(stamp(rank, k)));
      while (arena.last_header(1 - rank) < k) std::this_thread::yield();
      wrong += !same(arena.header(1 - rank, k), header_with(stamp(1 - rank, k)));
    }
    EXPECT_EQ(wrong, 0u) << "at rank " << rank;
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
}

TEST(ShmArena, BarrierAndHeadersHoldAcrossSeparateMappings) {
  Ranks ranks(4, /*separately_mapped=*/true);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) threads.emplace_back([&, rank] { stamp_and_look(ranks, rank, 2000, 0); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmArena, ABarrierPassesOnlyOnceEveryMemberHasArrivedThatOften) {
  Arenas arenas = make_local_arenas(3, 64, 64);
  const auto all_passed = [&](uint64_t barrier) {
    int passed = 0;
    for (const auto& arena : arenas) passed += arena->passed(barrier);
    EXPECT_TRUE(passed == 0 || passed == 3);
    return passed == 3;
  };
  EXPECT_TRUE(all_passed(0));
  for (int times = 0; times < 3; ++times) arenas[0]->arrive();  // as many arrivals as members, all from one
  EXPECT_EQ(arenas[0]->arrived(0), 3u);
  EXPECT_FALSE(all_passed(1));
  arenas[1]->arrive();
  EXPECT_FALSE(all_passed(1));
  arenas[2]->arrive();
  EXPECT_TRUE(all_passed(1));
  EXPECT_FALSE(all_passed(2));
  arenas[2]->arrive();
  arenas[1]->arrive();
  EXPECT_TRUE(all_passed(2));
  EXPECT_FALSE(all_passed(3));
}

TEST(ShmArena, TheLastArrivalRingsSleepersOnly) {
  Ranks ranks(3, /*separately_mapped=*/false);
  ranks.arenas[1]->set_asleep(true);
  ranks.arenas[0]->arrive();
  ranks.arenas[1]->arrive();
  EXPECT_FALSE(readable(ranks.bells[1], 0));
  ranks.arenas[2]->arrive();
  EXPECT_TRUE(readable(ranks.bells[1], 0));
  EXPECT_FALSE(readable(ranks.bells[0], 0));
  EXPECT_FALSE(readable(ranks.bells[2], 0));
}

TEST(ShmArena, ABarrierIsNotMissedByAMemberFallingAsleep) {
  Ranks ranks(2, /*separately_mapped=*/false);
  ShmArena& sleeper = *ranks.arenas[1];
  sleeper.arrive();
  const auto passed = [&] {
    if (!sleeper.passed(sleeper.arrived(sleeper.index()))) return false;
    sleeper.arrive();  // at the next round's barrier, which then only waits for the publisher
    return true;
  };
  EXPECT_EQ(missed_events(
                sleeper, ranks.bells[1], [&] { ranks.arenas[0]->arrive(); }, passed),
            0u);
}

TEST(ShmArena, SlotsAreDistinctAlignedAndSeenByAll) {
  constexpr int64_t kSlotBytes = 4160;
  std::vector<Doorbell> bells(3);
  Arenas arenas = separately_mapped_arenas({3, kSlotBytes, 64}, {&bells[0], &bells[1], &bells[2]});
  for (int member = 0; member < 3; ++member) {
    EXPECT_EQ(arenas[member]->index(), member);
    EXPECT_EQ(arenas[member]->size(), 3);
    EXPECT_EQ(arenas[member]->slot_bytes(), kSlotBytes);
    for (int parity = 0; parity < 2; ++parity) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(arenas[member]->slot(member, parity)) % 64, 0u);
      std::memset(arenas[member]->slot(member, parity), 1 + 2 * member + parity, kSlotBytes);
    }
  }
  for (const auto& reader : arenas) {
    for (int slot = 0; slot < 6; ++slot) {
      const std::byte* bytes = reader->slot(slot / 2, slot % 2);
      for (int64_t i = 0; i < kSlotBytes; ++i) ASSERT_EQ(bytes[i], static_cast<std::byte>(1 + slot));
    }
  }
}

TEST(ShmArena, ANoteStaysUntilTheOneAfterTheNext) {
  Arenas arenas = make_local_arenas(2, 64, 64);
  EXPECT_EQ(arenas[1]->last_header(0), 0u);
  arenas[0]->post_header(1, header_with(11));
  arenas[0]->post_header(2, header_with(22));
  EXPECT_EQ(arenas[1]->last_header(0), 2u);
  EXPECT_EQ(arenas[1]->last_header(1), 0u);
  EXPECT_TRUE(same(arenas[1]->header(0, 1), header_with(11)));
  EXPECT_TRUE(same(arenas[1]->header(0, 2), header_with(22)));
  arenas[0]->post_header(5, header_with(55));  // numbers may be skipped, not repeated
  EXPECT_TRUE(same(arenas[1]->header(0, 5), header_with(55)));
  EXPECT_EQ(kind_thrown([&] { arenas[0]->post_header(5, header_with(0)); }), ErrorKind::kInternal);
}

TEST(ShmArena, RefusesSegmentsThatDoNotFit) {
  const SegmentLayout layout{2, 64, 64};
  const auto create = [&](int index, const std::vector<SegmentLayout>& layouts, int64_t heap_bytes = 0) {
    std::vector<LocalMember> members;
    for (const SegmentLayout& each : layouts) members.push_back({Segment::create(each), Doorbell()});
    SegmentLayout with_heap = layout;
    with_heap.heap_bytes = heap_bytes;
    ShmArena::create(index, with_heap, std::move(members), OwnHeap::acquire("", heap_bytes, 0, 2));
  };
  EXPECT_NO_THROW(create(1, {layout, layout}));
  EXPECT_EQ(kind_thrown([&] { create(2, {layout, layout}); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_thrown([&] { create(-1, {layout, layout}); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_thrown([&] { create(0, {layout}); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_thrown([&] { create(0, {layout, {2, 1 << 20, 64}}); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_thrown([&] { create(1, {layout, layout}, 4096); }), ErrorKind::kInvalidArgument) << "no heaps";
}

TEST(ShmArena, GivesOneLinkPerOtherMemberAndTraffic) {
  for (const auto& [first, second] :
       {std::pair(Traffic::kCollectives, Traffic::kMessages), std::pair(Traffic::kMessages, Traffic::kCollectives)}) {
    Arenas arenas = make_local_arenas(3, 64, 64);
    const auto link = arenas[0]->link_to(1, first);
    for (const int member : {1, 0, 3, -1}) {
      EXPECT_EQ(kind_thrown([&] { arenas[0]->link_to(member, first); }), ErrorKind::kInvalidArgument) << member;
    }
    EXPECT_NE(arenas[0]->link_to(2, first), nullptr);
    EXPECT_NE(arenas[0]->link_to(1, second), nullptr);
  }
}

TEST(ShmArena, EveryPairOfMembersHasItsOwnStreamPerTraffic) {
  constexpr int kRanks = 16;
  Arenas arenas = make_local_arenas(kRanks, 64, 64);
  std::map<std::tuple<int, int, Traffic>, std::unique_ptr<Link>> links;
  const auto for_each_stream = [&](const std::function<void(int, int, Traffic, int)>& visit) {
    for (int from = 0; from < kRanks; ++from) {
      for (int to = 0; to < kRanks; ++to) {
        for (const Traffic traffic : {Traffic::kCollectives, Traffic::kMessages}) {
          if (from != to) visit(from, to, traffic, (from * kRanks + to) * kTrafficCount + static_cast<int>(traffic));
        }
      }
    }
  };
  for_each_stream([&](int from, int to, Traffic traffic, int word) {
    auto& link = links[{from, to, traffic}] = arenas[from]->link_to(to, traffic);
    ASSERT_EQ(link->try_send(&word, sizeof word), sizeof word);
  });
  for_each_stream([&](int from, int to, Traffic traffic, int word) {
    int received = -1;
    ASSERT_EQ((links[{to, from, traffic}]->try_recv(&received, sizeof received)), sizeof received);
    EXPECT_EQ(received, word);
  });
}

}  // namespace
}  // namespace ringdp::transport
