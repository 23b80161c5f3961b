// Test support: a litmus test of the sleep protocol, "publish, then look at asleep" against "asleep, then look again".
//
// One thread publishes while another falls asleep, as close together as two cores allow and as often as a moment allows:
// where other programs have the cores, a round takes long. In every round the sleeper must have seen the event at its last
// look or find its doorbell rung. Never hangs.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/deadline.h"
#include "long_tests.h"
#include "transport/arena.h"
#include "transport/doorbell.h"

namespace ringdp::transport {

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
