#include "transport/shm/shm_link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "long_tests.h"
#include "transport/link_suite.h"
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

// A stream in private memory of exactly its size, so that address sanitizers see any access outside it.
class Memory {
 public:
  explicit Memory(size_t capacity)
      : bytes_(kStreamHeaderBytes + capacity, static_cast<std::align_val_t>(kLinePairBytes)) {}
  std::byte* at() { return bytes_.at; }
  StreamHeader& header() { return *reinterpret_cast<StreamHeader*>(bytes_.at); }

 private:
  struct Aligned {
    Aligned(size_t size, std::align_val_t alignment)
        : at(static_cast<std::byte*>(::operator new(size, alignment))), alignment(alignment) {
      std::memset(at, 0, size);
    }
    ~Aligned() { ::operator delete(at, alignment); }
    Aligned(const Aligned&) = delete;
    std::byte* at;
    std::align_val_t alignment;
  };
  Aligned bytes_;
};

TEST(SpscStream, KeepsOrderAcrossEveryWrapPosition) {
  constexpr size_t kCapacity = 16;
  for (size_t size = 1; size <= kCapacity; ++size) {
    Memory memory(kCapacity);
    StreamWriter writer(memory.at(), kCapacity);
    StreamReader reader(memory.at(), kCapacity);
    std::vector<uint8_t> out(size), in(size);
    for (uint8_t round = 0; round < 40; ++round) {
      std::iota(out.begin(), out.end(), static_cast<uint8_t>(round * size));
      ASSERT_EQ(writer.push(out.data(), size), size);
      ASSERT_EQ(reader.pop(in.data(), size), size);
      ASSERT_EQ(in, out) << "size " << size << ", round " << int{round};
    }
  }
}

TEST(SpscStream, TakesWhatFitsAndGivesWhatIsThere) {
  constexpr size_t kCapacity = 8;
  Memory memory(kCapacity);
  StreamWriter writer(memory.at(), kCapacity);
  StreamReader reader(memory.at(), kCapacity);
  const char out[] = "abcdefghijkl";
  char in[16] = {};
  EXPECT_EQ(reader.pop(in, 1), 0u);
  EXPECT_EQ(writer.push(out, 12), kCapacity);
  EXPECT_EQ(writer.push(out, 1), 0u);
  EXPECT_EQ(reader.pop(in, 3), 3u);
  EXPECT_EQ(writer.push(out + kCapacity, 4), 3u);
  EXPECT_EQ(reader.pop(in + 3, 13), kCapacity);
  EXPECT_STREQ(in, "abcdefghijk");
}

TEST(SpscStream, AReaderRefusesATailThatClaimsMoreThanTheCapacity) {
  constexpr size_t kCapacity = 64;
  for (const uint64_t tail : {uint64_t{65}, uint64_t{1} << 40, UINT64_MAX}) {
    Memory memory(kCapacity);
    StreamReader reader(memory.at(), kCapacity);
    memory.header().tail = tail;
    char in[128] = {};
    try {
      reader.pop(in, sizeof in);
      FAIL() << "accepted tail " << tail;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_NE(std::string(error.what()).find(std::to_string(tail)), std::string::npos) << error.what();
    }
    EXPECT_EQ(memory.header().head, 0u);
  }
}

TEST(SpscStream, AWriterRefusesAHeadBeyondItsTailOrBehindItsRing) {
  constexpr size_t kCapacity = 64;
  const std::vector<char> out(kCapacity);
  for (const uint64_t head : {uint64_t{kCapacity + 1}, UINT64_MAX}) {
    Memory memory(kCapacity);
    StreamWriter writer(memory.at(), kCapacity);
    ASSERT_EQ(writer.push(out.data(), kCapacity), kCapacity);
    memory.header().head = head;
    EXPECT_THROW(writer.push(out.data(), 1), Error) << head;
    EXPECT_EQ(memory.header().tail, kCapacity);
  }
}

TEST(SpscStream, TwoThreadsSeeOneSequence) {
  constexpr size_t kCapacity = 256;
  const uint32_t kTotal = long_tests() ? 200'000 : 20'000;
  Memory memory(kCapacity);
  std::thread sender([&] {
    StreamWriter writer(memory.at(), kCapacity);
    for (uint32_t value = 0; value < kTotal; ++value) {
      for (size_t done = 0; done < sizeof value;) {
        const size_t n = writer.push(reinterpret_cast<const char*>(&value) + done, sizeof value - done);
        if (n == 0) std::this_thread::yield();
        done += n;
      }
    }
  });
  StreamReader reader(memory.at(), kCapacity);
  uint32_t wrong = 0;
  for (uint32_t expected = 0; expected < kTotal; ++expected) {
    uint32_t value = 0;
    for (size_t done = 0; done < sizeof value;) {
      const size_t n = reader.pop(reinterpret_cast<char*>(&value) + done, sizeof value - done);
      if (n == 0) std::this_thread::yield();
      done += n;
    }
    wrong += value != expected;
  }
  sender.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace ringdp::transport
