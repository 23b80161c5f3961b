// Test support: what every Link must do, as a type-parameterised GoogleTest suite, and the bytes that it sends.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "transport/link.h"

namespace ringdp::transport {

// The bytes that one end of a link sends; a reader knows which byte comes at which position. They repeat after a prime
// number of bytes, which no power-of-two ring could hide. They are read from a table, because computing each byte would
// take longer than sending it.
class ByteSequence {
 public:
  explicit ByteSequence(int end) : bytes_(kPeriod) {
    uint64_t state = static_cast<uint64_t>(end) * 0xD1B54A32D192ED03u;
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>((state += 0x9E3779B97F4A7C15u) >> 56);
  }

  void write(uint64_t position, std::byte* to, size_t size) const {
    for_each_run(position, size, [&](size_t done, const std::byte* bytes, size_t n) {
      std::memcpy(to + done, bytes, n);
      return true;
    });
  }
  bool equals(uint64_t position, const std::byte* found, size_t size) const {
    bool equal = true;
    for_each_run(position, size, [&](size_t done, const std::byte* bytes, size_t n) {
      return equal = equal && std::memcmp(found + done, bytes, n) == 0;
    });
    return equal;
  }

  static const ByteSequence& of(int end) {
    static const ByteSequence sequences[] = {ByteSequence(0), ByteSequence(1)};
    return sequences[end];
  }

 private:
  static constexpr size_t kPeriod = 131'071;

  template <class Visit>
  void for_each_run(uint64_t position, size_t size, Visit visit) const {
    for (size_t done = 0; done < size;) {
      const size_t at = (position + done) % kPeriod, n = std::min(size - done, kPeriod - at);
      visit(done, bytes_.data() + at, n);
      done += n;
    }
  }

  std::vector<std::byte> bytes_;
};

// A test file makes a Pair type and instantiates: INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, LinkSuite, testing::Types<P>).
// A Pair is default-constructible, owns two connected links and knows how a driver sleeps on its end (0 or 1):
//   Link& link(int end);
//   void set_asleep(int end, bool asleep);  // announce or retract sleep to the peer; nothing over sockets
//   int wake_fd(int end);                   // readable after a wake-up; asked only when add_polls() adds nothing
//   void drain(int end);                    // after waking

// One end of a pair under test: sends its sequence, checks the peer's, sleeps as a driver does.
template <class Pair>
class LinkEnd {
 public:
  LinkEnd(Pair& pair, int end) : pair_(pair), end_(end) {}

  size_t send(size_t size) {
    out_.resize(size);
    ByteSequence::of(end_).write(sent_, out_.data(), size);
    const size_t n = pair_.link(end_).try_send(out_.data(), size);
    EXPECT_LE(n, size);
    sent_ += n;
    return n;
  }

  size_t receive(size_t size) {
    constexpr auto kGuard = std::byte{0xA5};
    in_.resize(size + 1);
    in_[size] = kGuard;
    const size_t n = pair_.link(end_).try_recv(in_.data(), size);
    EXPECT_LE(n, size);
    EXPECT_EQ(in_[size], kGuard) << "written past the end of the caller's buffer";
    right_ = right_ && ByteSequence::of(1 - end_).equals(received_, in_.data(), n);
    EXPECT_TRUE(right_) << "in bytes [" << received_ << ", " << received_ + n << ")";
    received_ += n;
    return n;
  }

  // Calls attempt() until it moves something, sleeping in between. False when no wake-up came.
  template <class Attempt>
  bool move(short events, Attempt attempt) {
    while (attempt() == 0) {
      pair_.set_asleep(end_, true);
      const bool moved = attempt() != 0;
      const bool woken = moved || sleep(events);
      pair_.set_asleep(end_, false);
      if (moved) return true;
      EXPECT_TRUE(woken) << "lost wake-up at end " << end_;
      if (!woken) return false;
    }
    return true;
  }

  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }

 private:
  bool sleep(short events) {
    constexpr int kHangMs = 60'000;  // a guard against hanging, not a time that is tested
    std::vector<pollfd> polled;
    pair_.link(end_).add_polls(events, polled);
    if (polled.empty()) polled.push_back({pair_.wake_fd(end_), POLLIN, 0});
    const bool woken = ::poll(polled.data(), polled.size(), kHangMs) >= 1;
    pair_.drain(end_);
    return woken;
  }

  Pair& pair_;
  const int end_;
  uint64_t sent_ = 0, received_ = 0;
  bool right_ = true;
  std::vector<std::byte> out_, in_;
};

template <class Pair>
class LinkSuite : public testing::Test {
 protected:
  // Sends and checks `total` bytes each way in random portions, from whatever thread calls it.
  static void exchange(LinkEnd<Pair>& self, uint64_t total, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<size_t> portion(1, 20'000);
    while (self.sent() < total || self.received() < total) {
      const size_t out = std::min<uint64_t>(portion(random), total - self.sent());
      const size_t in = std::min<uint64_t>(portion(random), total - self.received());
      const auto both = [&] { return self.send(out) + self.receive(in); };
      short events = out > 0 ? POLLOUT : 0;
      if (in > 0) events |= POLLIN;
      if (!self.move(events, both)) return;
    }
  }

  // Fills the direction from `from` until it takes no more; the capacity must be bounded.
  static void fill(LinkEnd<Pair>& from) {
    constexpr uint64_t kBound = uint64_t{256} << 20;
    while (from.sent() < kBound && from.send(64 << 10) > 0) {
    }
    ASSERT_LT(from.sent(), kBound) << "the stream never became full";
  }

  static void empty(LinkEnd<Pair>& to, uint64_t until) {
    while (to.received() < until &&
           to.move(POLLIN, [&] { return to.receive(std::min<uint64_t>(until - to.received(), 1 << 20)); })) {
    }
  }

  Pair pair_;
  LinkEnd<Pair> a_{pair_, 0}, b_{pair_, 1};
};

TYPED_TEST_SUITE_P(LinkSuite);

TYPED_TEST_P(LinkSuite, NothingArrivesBeforeAnythingIsSent) {
  EXPECT_EQ(this->a_.receive(100), 0u);
  EXPECT_EQ(this->b_.receive(100), 0u);
}

TYPED_TEST_P(LinkSuite, ZeroSizeCallsMoveNothing) {
  EXPECT_EQ(this->pair_.link(0).try_send(nullptr, 0), 0u);
  EXPECT_EQ(this->pair_.link(1).try_recv(nullptr, 0), 0u);
  ASSERT_GT(this->a_.send(10), 0u);
  EXPECT_EQ(this->pair_.link(1).try_recv(nullptr, 0), 0u);
  this->empty(this->b_, this->a_.sent());
}

TYPED_TEST_P(LinkSuite, RandomPortionsKeepTheSequenceInOneThread) {
  std::mt19937 random(7);
  std::uniform_int_distribution<size_t> portion(0, 3000);
  for (int round = 0; round < 2000; ++round) {
    switch (random() % 4) {
      case 0:
        this->a_.send(portion(random));
        break;
      case 1:
        this->b_.send(portion(random));
        break;
      case 2:
        this->a_.receive(portion(random));
        break;
      case 3:
        this->b_.receive(portion(random));
        break;
    }
    ASSERT_LE(this->a_.received(), this->b_.sent());
    ASSERT_LE(this->b_.received(), this->a_.sent());
  }
  this->empty(this->a_, this->b_.sent());
  this->empty(this->b_, this->a_.sent());
  EXPECT_GT(this->a_.received() + this->b_.received(), 0u);
}

TYPED_TEST_P(LinkSuite, BothDirectionsAtOnceFromTwoThreads) {
  constexpr uint64_t kTotal = 4 << 20;
  std::thread peer([&] { this->exchange(this->b_, kTotal, 2); });
  this->exchange(this->a_, kTotal, 1);
  peer.join();
  EXPECT_EQ(this->a_.received(), kTotal);
  EXPECT_EQ(this->b_.received(), kTotal);
}

TYPED_TEST_P(LinkSuite, AFullStreamTakesNothingAndResumes) {
  for (int round = 0; round < 2; ++round) {
    ASSERT_NO_FATAL_FAILURE(this->fill(this->a_));
    this->empty(this->b_, this->a_.sent());
    ASSERT_EQ(this->b_.received(), this->a_.sent());
    ASSERT_TRUE(this->a_.move(POLLOUT, [&] { return this->a_.send(1); }));
  }
  this->empty(this->b_, this->a_.sent());
  EXPECT_EQ(this->b_.received(), this->a_.sent());
}

TYPED_TEST_P(LinkSuite, AFullDirectionDoesNotBlockTheOther) {
  ASSERT_NO_FATAL_FAILURE(this->fill(this->a_));
  ASSERT_GT(this->b_.send(1000), 0u);
  this->empty(this->a_, this->b_.sent());
  EXPECT_EQ(this->a_.received(), this->b_.sent());
}

TYPED_TEST_P(LinkSuite, ALargeTransferArrivesWhole) {
  constexpr size_t kSize = 12 << 20;  // more than two sockets' buffers
  std::vector<std::byte> out(kSize), in(kSize);
  ByteSequence::of(0).write(0, out.data(), kSize);
  std::thread receiver([&] {
    size_t done = 0;
    const auto more = [&] {
      const size_t n = this->pair_.link(1).try_recv(in.data() + done, kSize - done);
      done += n;
      return n;
    };
    while (done < kSize && this->b_.move(POLLIN, more)) {
    }
  });
  size_t done = 0;
  const auto more = [&] {
    const size_t n = this->pair_.link(0).try_send(out.data() + done, kSize - done);
    done += n;
    return n;
  };
  while (done < kSize && this->a_.move(POLLOUT, more)) {
  }
  receiver.join();
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kSize), 0);
}

// Each end sleeps until the other's byte comes: one lost wake-up in any round stops it.
TYPED_TEST_P(LinkSuite, EverySendWakesASleepingReceiver) {
  constexpr uint64_t kRounds = 5000;
  std::thread peer([&] {
    while (this->b_.received() < kRounds && this->b_.move(POLLIN, [&] { return this->b_.receive(1); })) {
      this->b_.send(1);
    }
  });
  while (this->a_.received() < kRounds) {
    this->a_.send(1);
    if (!this->a_.move(POLLIN, [&] { return this->a_.receive(1); })) break;
  }
  peer.join();
  EXPECT_EQ(this->a_.received(), kRounds);
}

// The sender keeps the stream full and sleeps until the receiver has made room.
TYPED_TEST_P(LinkSuite, EveryReceiveWakesASleepingSender) {
  ASSERT_NO_FATAL_FAILURE(this->fill(this->a_));
  const uint64_t total = this->a_.sent() + (1 << 20);
  std::thread peer([&] {
    while (this->b_.received() < total && this->b_.move(POLLIN, [&] { return this->b_.receive(500); })) {
    }
  });
  const auto rest = [&] { return this->a_.send(std::min<uint64_t>(700, total - this->a_.sent())); };
  while (this->a_.sent() < total && this->a_.move(POLLOUT, rest)) {
  }
  peer.join();
  EXPECT_EQ(this->b_.received(), total);
}

REGISTER_TYPED_TEST_SUITE_P(LinkSuite, NothingArrivesBeforeAnythingIsSent, ZeroSizeCallsMoveNothing,
                            RandomPortionsKeepTheSequenceInOneThread, BothDirectionsAtOnceFromTwoThreads,
                            AFullStreamTakesNothingAndResumes, AFullDirectionDoesNotBlockTheOther,
                            ALargeTransferArrivesWhole, EverySendWakesASleepingReceiver,
                            EveryReceiveWakesASleepingSender);

}  // namespace ringdp::transport
