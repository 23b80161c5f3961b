#include "collective/header_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/error.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::collective {
namespace {

constexpr int kWorld = 3;

// Three ranks of one thread, in an arena or on links; header r holds the byte r + 1.
class Exchanges {
 public:
  explicit Exchanges(bool in_arena) : fabrics_(kWorld), seen_(kWorld) {
    for (transport::Doorbell& bell : bells) rung_.push_back(&bell);
    arenas = transport::make_local_arenas(kWorld, 64, 4096, rung_);
    for (int r = 0; r < kWorld; ++r) {
      if (in_arena) fabrics_[r].arena = arenas[r].get();
      for (int q = 0; q < kWorld; ++q) {
        links_.push_back(q == r ? nullptr : arenas[r]->link_to(q));
        fabrics_[r].links.push_back(links_.back().get());
      }
      Opening opening;
      opening.seq = 4;
      opening.header.bytes[0] = static_cast<std::byte>(r + 1);
      opening.check = [this, r](int rank, const transport::Header& header) {
        if (header.bytes[0] != static_cast<std::byte>(rank + 1)) throw Error(ErrorKind::kMismatch, "differs", rank);
        ++seen_[r];
      };
      headers.emplace_back(fabrics_[r], r, kWorld, std::move(opening));
    }
  }
  int seen_by(int rank) const { return seen_[rank]; }
  bool woken(int rank) const {
    pollfd polled{bells[rank].fd(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
  }

  std::vector<transport::Doorbell> bells = std::vector<transport::Doorbell>(kWorld);
  std::vector<std::unique_ptr<transport::ShmArena>> arenas;
  std::vector<HeaderExchange> headers;

 private:
  std::vector<transport::Doorbell*> rung_;
  std::vector<std::unique_ptr<transport::Link>> links_;
  std::vector<Fabric> fabrics_;
  std::vector<int> seen_;
};

TEST(HeaderExchange, EverybodyChecksEverybodyOnce) {
  for (const bool in_arena : {true, false}) {
    Exchanges world(in_arena);
    for (HeaderExchange& headers : world.headers) headers.publish();
    for (int turn = 0; turn < 3; ++turn) {
      for (HeaderExchange& headers : world.headers) headers.advance();
    }
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_TRUE(world.headers[r].done());
      EXPECT_EQ(world.seen_by(r), kWorld - 1);
      EXPECT_EQ(world.headers[r].bytes_sent(), in_arena ? 0 : (kWorld - 1) * sizeof(transport::Header));
    }
  }
}

TEST(HeaderExchange, NamesWhoIsSilent) {
  for (const bool in_arena : {true, false}) {
    Exchanges world(in_arena);
    for (const int r : {0, 2}) world.headers[r].publish();
    for (int turn = 0; turn < 3; ++turn) {
      for (const int r : {0, 2}) world.headers[r].advance();
    }
    EXPECT_EQ(world.headers[0].silent_ranks(), std::vector<int>{1});
    EXPECT_FALSE(world.headers[0].all_checked());
  }
}

TEST(HeaderExchange, PollsOnlyForWhatIsMissing) {
  Exchanges world(false);
  std::vector<short> events(kWorld, 0);
  world.headers[0].add_events(events);
  EXPECT_EQ(events, (std::vector<short>{0, POLLIN | POLLOUT, POLLIN | POLLOUT}));
  world.headers[0].advance();
  world.headers[2].advance();
  world.headers[0].advance();
  events.assign(kWorld, 0);
  world.headers[0].add_events(events);
  EXPECT_EQ(events, (std::vector<short>{0, POLLIN, 0}));
}

// Sleepers that wait for headers, not for a barrier, hear of the last one.
TEST(HeaderExchange, TheLastPosterWakesThoseWhoWaitForHeaders) {
  Exchanges world(true);
  for (const int r : {0, 1}) {
    world.headers[r].publish_before_arrival();
    world.arenas[r]->set_asleep(true);
  }
  EXPECT_FALSE(world.woken(0)) << "rank 1's header was not the last";
  world.headers[2].publish_before_arrival();
  EXPECT_TRUE(world.woken(0));
  EXPECT_TRUE(world.woken(1));
}

TEST(HeaderExchange, ThoseWhoArrivedAreLeftToTheBarrier) {
  Exchanges world(true);
  for (const int r : {0, 1}) {
    world.headers[r].publish_before_arrival();
    world.arenas[r]->arrive();
    world.arenas[r]->set_asleep(true);
  }
  world.headers[2].publish_before_arrival();
  EXPECT_FALSE(world.woken(0));
  world.arenas[2]->arrive();
  EXPECT_TRUE(world.woken(0));
}

TEST(HeaderExchange, ShowingWakesAtOnce) {
  Exchanges world(true);
  world.arenas[1]->set_asleep(true);
  world.headers[0].publish();
  EXPECT_TRUE(world.woken(1));
}

}  // namespace
}  // namespace ringdp::collective
