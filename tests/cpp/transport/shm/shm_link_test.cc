#include "transport/shm/shm_link.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "long_tests.h"
#include "transport/link_suite.h"
#include "transport/shm/falling_asleep.h"
#include "transport/shm/local_arenas.h"

namespace ringdp::transport {
namespace {

// Two of three members, so that stream offsets of other members are in play.
template <int64_t kCapacity, bool kSeparatelyMapped>
class ShmPair {
 public:
  ShmPair() {
    const std::vector<Doorbell*> bells{&bells_[0], &bells_[1], &bells_[2]};
    arenas_ = kSeparatelyMapped ? separately_mapped_arenas({3, 64, kCapacity}, bells)
                                : make_local_arenas(3, 64, kCapacity, bells);
    links_[0] = arenas_[0]->link_to(2);
    links_[1] = arenas_[2]->link_to(0);
  }
  Link& link(int end) { return *links_[end]; }
  void set_asleep(int end, bool asleep) { arenas_[2 * end]->set_asleep(asleep); }
  int wake_fd(int end) { return bells_[2 * end].fd(); }
  void drain(int end) { bells_[2 * end].drain(); }

 private:
  Doorbell bells_[3];
  std::vector<std::unique_ptr<ShmArena>> arenas_;
  std::unique_ptr<Link> links_[2];
};

using Pairs = testing::Types<ShmPair<512, false>, ShmPair<512 << 10, false>, ShmPair<4096, true>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, LinkSuite, Pairs);

TEST(ShmLink, IsWokenByTheDoorbellAndSaysSo) {
  ShmPair<64, false> pair;
  std::vector<pollfd> polls;
  pair.link(0).add_polls(POLLIN | POLLOUT, polls);
  EXPECT_TRUE(polls.empty());
  EXPECT_STREQ(pair.link(0).kind(), "shm");
}

TEST(ShmLink, BuffersExactlyItsCapacity) {
  for (const int64_t capacity : {1, 64, 4096, 256 << 10}) {
    auto arenas = make_local_arenas(2, 64, capacity);
    auto link = arenas[0]->link_to(1);
    const std::vector<std::byte> bytes(capacity + 1);
    EXPECT_EQ(link->try_send(bytes.data(), bytes.size()), static_cast<size_t>(capacity));
    EXPECT_EQ(link->try_send(bytes.data(), 1), 0u);
  }
}

bool rung(const Doorbell& bell) {
  pollfd polled{bell.fd(), POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

TEST(ShmLink, RingsOnlyAPeerThatIsAsleep) {
  Doorbell bells[2];
  auto arenas = make_local_arenas(2, 64, 64, {&bells[0], &bells[1]});
  auto sender = arenas[0]->link_to(1), receiver = arenas[1]->link_to(0);
  char byte = 'x';
  sender->try_send(&byte, 1);
  EXPECT_FALSE(rung(bells[1]));
  arenas[1]->set_asleep(true);
  sender->try_send(&byte, 1);
  EXPECT_TRUE(rung(bells[1]));
  EXPECT_FALSE(rung(bells[0]));
  arenas[0]->set_asleep(true);
  receiver->try_recv(&byte, 1);
  EXPECT_TRUE(rung(bells[0]));
}

TEST(ShmLink, ASendIsNotMissedByAReceiverFallingAsleep) {
  Doorbell bells[2];
  auto arenas = make_local_arenas(2, 64, 64, {&bells[0], &bells[1]});
  auto sender = arenas[0]->link_to(1), receiver = arenas[1]->link_to(0);
  char in = 0;
  const auto publish = [&] { sender->try_send("x", 1); };
  EXPECT_EQ(missed_events(*arenas[1], bells[1], publish, [&] { return receiver->try_recv(&in, 1) == 1; }), 0u);
}

TEST(ShmLink, RoomIsNotMissedByASenderFallingAsleep) {
  Doorbell bells[2];
  auto arenas = make_local_arenas(2, 64, 1, {&bells[0], &bells[1]});
  auto sender = arenas[0]->link_to(1), receiver = arenas[1]->link_to(0);
  char in = 0;
  ASSERT_EQ(sender->try_send("x", 1), 1u);
  const auto publish = [&] { receiver->try_recv(&in, 1); };
  EXPECT_EQ(missed_events(*arenas[0], bells[0], publish, [&] { return sender->try_send("x", 1) == 1; }), 0u);
}

TEST(ShmLink, OutlivesItsArena) {
  auto arenas = make_local_arenas(2, 64, 4096);
  auto sender = arenas[0]->link_to(1), receiver = arenas[1]->link_to(0);
  arenas.clear();
  const char sent[] = "still mapped";
  char received[sizeof sent] = {};
  EXPECT_EQ(sender->try_send(sent, sizeof sent), sizeof sent);
  EXPECT_EQ(receiver->try_recv(received, sizeof received), sizeof received);
  EXPECT_STREQ(received, sent);
}

// The other process of the pair: sends its sequence until it is killed.
[[noreturn]] void send_forever(const SegmentLayout& layout, int fd0, int fd1) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test must not leave it spinning
  std::vector<LocalMember> members;
  members.push_back({Segment::map(duplicate(fd0), layout), Doorbell()});
  members.push_back({Segment::map(duplicate(fd1), layout), Doorbell()});
  auto arena = ShmArena::create(1, layout, std::move(members));
  auto link = arena->link_to(0);
  std::byte portion[1000];
  for (uint64_t sent = 0;;) {
    ByteSequence::of(1).write(sent, portion, sizeof portion);
    sent += link->try_send(portion, sizeof portion);
  }
}

TEST(ShmLink, AKilledSenderLeavesAConsistentPrefix) {
  const SegmentLayout layout{2, 64, 1 << 14};
  std::mt19937 random(11);
  const int rounds = long_tests() ? 100 : kSanitized ? 5 : 20;
  ByteSequence::of(1);  // made before there is a child
  for (int round = 0; round < rounds; ++round) {
    std::vector<LocalMember> members;
    for (int member = 0; member < 2; ++member) members.push_back({Segment::create(layout), Doorbell()});
    const int fd0 = members[0].segment.fd(), fd1 = members[1].segment.fd();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) send_forever(layout, fd0, fd1);

    auto link = ShmArena::create(0, layout, std::move(members))->link_to(1);
    const uint64_t kill_after = random() % 200'000;
    uint64_t received = 0;
    bool killed = false, right = true;
    for (std::byte portion[777];;) {
      const size_t n = link->try_recv(portion, sizeof portion);
      right = right && ByteSequence::of(1).equals(received, portion, n);
      received += n;
      if (killed && n == 0) break;
      ASSERT_TRUE(killed || n > 0 || ::waitpid(child, nullptr, WNOHANG) == 0) << "the sender ended by itself";
      if (!killed && received >= kill_after) {
        ::kill(child, SIGKILL);
        ASSERT_EQ(::waitpid(child, nullptr, 0), child);
        killed = true;
      }
    }
    EXPECT_TRUE(right);
    EXPECT_GE(received, kill_after);
  }
}

}  // namespace
}  // namespace ringdp::transport
