// Test support: the arenas of N ranks that are threads of one process.
//
// All of them share one set of mappings, so a thread sanitizer sees one address per shared byte and can judge every
// access. Tests that need a mapping per rank (as between processes) use separately_mapped_arenas.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "long_tests.h"
#include "transport/arena.h"
#include "transport/doorbell.h"
#include "transport/shm/shm_arena.h"

namespace ringdp::transport {

inline UniqueFd duplicate(int fd) {
  UniqueFd copy(::dup(fd));
  EXPECT_TRUE(copy);
  return copy;
}

// Rank r's doorbell: a copy of bells[r], or a new one when no bells are given.
inline Doorbell local_bell(const std::vector<Doorbell*>& bells, int rank) {
  return bells.empty() ? Doorbell() : Doorbell(duplicate(bells[rank]->fd()));
}

// By rank.
inline std::vector<OwnHeap> own_heaps(const SegmentLayout& layout) {
  std::vector<OwnHeap> heaps;
  for (int rank = 0; rank < layout.members; ++rank) {
    heaps.push_back(OwnHeap::acquire("", layout.heap_bytes, rank, layout.members));
  }
  return heaps;
}

inline std::vector<std::unique_ptr<ShmArena>> make_local_arenas(const SegmentLayout& layout,
                                                                std::vector<Doorbell*> bells = {}) {
  const int ranks = layout.members;
  auto members = std::make_shared<std::vector<LocalMember>>();
  std::vector<OwnHeap> heaps = own_heaps(layout);
  for (int rank = 0; rank < ranks; ++rank) {
    members->push_back({Segment::create(layout), local_bell(bells, rank), heaps[rank].memory()});
  }
  std::vector<std::unique_ptr<ShmArena>> arenas;
  for (int rank = 0; rank < ranks; ++rank) {
    arenas.push_back(ShmArena::create(rank, layout, members, std::move(heaps[rank])));
  }
  return arenas;
}

inline std::vector<std::unique_ptr<ShmArena>> make_local_arenas(int ranks, int64_t slot_bytes, int64_t stream_bytes,
                                                                std::vector<Doorbell*> bells = {}) {
  return make_local_arenas({ranks, slot_bytes, stream_bytes}, std::move(bells));
}

// The same with one mapping of every segment per rank: what processes have.
inline std::vector<std::unique_ptr<ShmArena>> separately_mapped_arenas(const SegmentLayout& layout,
                                                                       std::vector<Doorbell*> bells) {
  std::vector<Segment> originals;
  for (int rank = 0; rank < layout.members; ++rank) originals.push_back(Segment::create(layout));
  std::vector<OwnHeap> heaps = own_heaps(layout);
  std::vector<std::shared_ptr<const Segment>> memories;
  for (const OwnHeap& heap : heaps) memories.push_back(heap.memory());
  std::vector<std::unique_ptr<ShmArena>> arenas;
  for (int rank = 0; rank < layout.members; ++rank) {
    std::vector<LocalMember> members;
    for (int member = 0; member < layout.members; ++member) {
      std::shared_ptr<const Segment> heap = memories[member];
      if (heap && member != rank) {
        heap = std::make_shared<const Segment>(Segment::map_heap(duplicate(heap->fd()), layout.heap_bytes));
      }
      members.push_back({Segment::map(duplicate(originals[member].fd()), layout), local_bell(bells, member), heap});
    }
    arenas.push_back(ShmArena::create(rank, layout, std::move(members), std::move(heaps[rank])));
  }
  return arenas;
}

// The following is a litmus test of the sleep protocol, "publish, then look at asleep" against "asleep, then look
// again".
//
// One thread publishes while another falls asleep, as close together as two cores allow. In every round the sleeper
// must have seen the event at its last look, or find its doorbell rung. Rounds are limited by time, because one takes
// long where other programs use the cores. Never hangs.

// Where two threads meet at the start of each phase; spins, because a futex would let one of them start late.
class Meeting {
 public:
  void meet() {
    const uint64_t mine = came_.fetch_add(1) + 1;
    const uint64_t both = mine + mine % 2;
    for (int spins = 0; came_.load() < both; ++spins) {
      if (spins > 2000) std::this_thread::yield();
    }
  }

 private:
  std::atomic<uint64_t> came_{0};
};

// Rounds in which the sleeper neither saw the event nor was rung. look() returns whether the round's event is there and
// consumes it; missed events are consumed by a look after the round.
template <class Publish, class Look>
uint64_t missed_events(Arena& sleeper, const Doorbell& bell, Publish publish, Look look) {
  constexpr uint32_t kRounds = 30'000;
  const Deadline over = Deadline::after(std::chrono::milliseconds(long_tests() ? 60'000 : 500));
  std::atomic<bool> is_last{false};  // decided between the meetings of a round
  Meeting meeting;
  std::thread publisher([&] {
    for (uint32_t round = 0; !is_last.load(); ++round) {
      meeting.meet();
      for (volatile uint32_t pause = round % 64; pause > 0;) pause = pause - 1;
      publish();
      meeting.meet();
    }
  });
  uint64_t missed = 0;
  for (uint32_t round = 0; !is_last.load(); ++round) {
    meeting.meet();
    if (round + 1 == kRounds || over.passed()) is_last = true;
    for (volatile uint32_t pause = round / 64 % 64; pause > 0;) pause = pause - 1;
    sleeper.set_asleep(true);
    const bool seen = look();
    meeting.meet();
    pollfd polled{bell.fd(), POLLIN, 0};
    if (!seen) {
      missed += ::poll(&polled, 1, 0) == 0;
      EXPECT_TRUE(look());
    }
    sleeper.set_asleep(false);
    bell.drain();
  }
  publisher.join();
  return missed;
}

}  // namespace ringdp::transport
