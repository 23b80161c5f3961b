#include "comm/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <random>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace ringdp::comm {
namespace {

ControlMessage abort_message(size_t text) {
  return {ControlKind::kAbort, ErrorKind::kMismatch, 3, 0, std::string(text, 'x'), 2};
}

void expect_equal(const ControlMessage& a, const ControlMessage& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.error, b.error);
  EXPECT_EQ(a.culprit, b.culprit);
  EXPECT_EQ(a.seq, b.seq);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.origin, b.origin);
}

TEST(Control, MessagesSurviveAnyCutting) {
  const std::vector<ControlMessage> sent = {{ControlKind::kHeartbeat, ErrorKind::kInternal, -1, 0, "", -1},
                                            abort_message(0),
                                            abort_message(kMaxText),
                                            {ControlKind::kGoodbye, ErrorKind::kAborted, 1, 1234567, "", -1}};
  std::string stream;
  for (const auto& m : sent) stream += encode(m);
  for (size_t piece : {size_t{1}, size_t{7}, size_t{24}, size_t{1000}, stream.size()}) {
    ControlParser parser;
    std::vector<ControlMessage> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      for (auto& m : parser.feed(stream.data() + at, std::min(piece, stream.size() - at))) got.push_back(m);
    }
    ASSERT_EQ(got.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) expect_equal(got[i], sent[i]);
  }
}

TEST(Control, EveryBitCounts) {
  const std::string good = encode(abort_message(9));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    ControlParser parser;
    EXPECT_THROW(parser.feed(bad.data(), bad.size()), Error) << "bit " << bit;
  }
}

TEST(Control, LongTextIsCut) {
  ControlParser parser;
  const std::string bytes = encode(abort_message(kMaxText + 500));
  EXPECT_EQ(parser.feed(bytes.data(), bytes.size()).at(0).text.size(), kMaxText);
}

TEST(Control, TextIsMadePrintable) {
  ControlParser parser;
  const std::string bytes = encode({ControlKind::kGoodbye, ErrorKind::kAborted, 1, 5, "\x1b[2J\xff", -1});
  EXPECT_EQ(parser.feed(bytes.data(), bytes.size()).at(0).text, "\\x1b[2J\\xff");
}

TEST(Control, GarbageIsRefusedWithoutGrowth) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ControlParser parser;
    EXPECT_THROW(parser.feed(bytes.data(), bytes.size()), Error);
  }
}

TEST(Control, KindsThatThereAreNotAreRefused) {
  ControlMessage kind = abort_message(9), error = kind;
  kind.kind = static_cast<ControlKind>(static_cast<int>(ControlKind::kGoodbye) + 1);
  error.error = static_cast<ErrorKind>(static_cast<int>(ErrorKind::kInternal) + 1);
  for (const ControlMessage& message : {kind, error}) {
    const std::string bytes = encode(message);
    ControlParser parser;
    EXPECT_THROW(parser.feed(bytes.data(), bytes.size()), Error);
  }
}

TEST(Control, DrainTellsOpenFromClosed) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd mine(ends[0]), theirs(ends[1]);
  ControlParser parser;
  std::vector<ControlMessage> got;
  EXPECT_EQ(drain_control(mine.get(), parser, got), Drained::kOpen);
  send_control(theirs.get(), abort_message(10));
  theirs.reset();
  EXPECT_EQ(drain_control(mine.get(), parser, got), Drained::kClosed);
  ASSERT_EQ(got.size(), 1u);  // what was said before the close is heard
  expect_equal(got[0], abort_message(10));
  send_control(mine.get(), abort_message(10));  // to a closed peer: lost, not fatal
}

class Listener : public Watched {
 public:
  void peer_aborted(int rank, const ControlMessage& m) override {
    say("aborted " + std::to_string(rank) + " " + m.text);
  }
  void peer_left(int rank, const ControlMessage& m) override {
    say("left " + std::to_string(rank) + " " + std::to_string(m.seq) + (m.text.empty() ? "" : " " + m.text));
  }
  void peer_lost(int rank, const std::string& how) override { say("lost " + std::to_string(rank) + " " + how); }
  void watch_failed(const std::string& why) override { say("watch_failed " + why); }

  std::string wait_for_word() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [this] { return !words_.empty(); });
    if (words_.empty()) return "nothing was said";
    const std::string word = words_.front();
    words_.erase(words_.begin());
    return word;
  }

 private:
  void say(const std::string& word) {
    const std::lock_guard lock(mutex_);
    words_.push_back(word);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> words_;
};

class WatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    mine.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  UniqueFd mine, theirs;
  std::vector<UniqueFd> kept;  // what is watched is closed after the watch has ended, as a group's
  std::shared_ptr<Listener> group = std::make_shared<Listener>();
  Watch watch{[] {}};
};

TEST_F(WatchTest, PassesOnWhatThePeerSays) {
  watch.add(group, {{4, mine.get(), -1, false}});
  send_control(theirs.get(), {ControlKind::kAbort, ErrorKind::kMismatch, 1, 0, "because", 4});
  EXPECT_EQ(group->wait_for_word(), "aborted 4 because");
}

TEST_F(WatchTest, GoodbyeIsNoLossEvenWhenTheSocketCloses) {
  send_control(theirs.get(), {ControlKind::kGoodbye, ErrorKind::kAborted, 4, 12, "", -1});
  theirs.reset();
  watch.add(group, {{4, mine.get(), -1, false}});
  EXPECT_EQ(group->wait_for_word(), "left 4 12");
}

TEST_F(WatchTest, PassesOnTheLastWordsOfAGoodbye) {
  watch.add(group, {{4, mine.get(), -1, false}});
  send_control(theirs.get(), {ControlKind::kGoodbye, ErrorKind::kAborted, 4, 12, "ValueError: no data", -1});
  EXPECT_EQ(group->wait_for_word(), "left 4 12 ValueError: no data");
}

TEST_F(WatchTest, AClosedSocketWithoutGoodbyeIsALoss) {
  watch.add(group, {{4, mine.get(), -1, false}});
  theirs.reset();
  EXPECT_EQ(group->wait_for_word().rfind("lost 4 closed", 0), 0u);
}

TEST_F(WatchTest, GarbageIsALoss) {
  watch.add(group, {{4, mine.get(), -1, false}});
  const std::string garbage(500, 'g');
  ASSERT_EQ(::send(theirs.get(), garbage.data(), garbage.size(), 0), 500);
  EXPECT_EQ(group->wait_for_word(), "lost 4 sent bytes that are no control message");
}

TEST_F(WatchTest, AKilledProcessIsNoticedThoughItsSocketStaysOpen) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const UniqueFd& pidfd = kept.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (!pidfd) GTEST_SKIP() << "this kernel has no pidfd_open";
  watch.add(group, {{4, mine.get(), pidfd.get(), false}});  // `theirs` stays open here, as in a forked child
  ::kill(child, SIGKILL);
  EXPECT_EQ(group->wait_for_word().rfind("lost 4 died", 0), 0u);
  ::waitpid(child, nullptr, 0);
}

// As many groups of many peers have.
TEST_F(WatchTest, SeesMoreDescriptorsThanAProcessMayHaveOpen) {
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  std::vector<WatchedPeer> peers{{4, mine.get(), -1, false}};
  for (int i = 0; i < 40; ++i) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peers.push_back({5 + i, ends[0], -1, false});
    for (const int end : ends) kept.emplace_back(end);
  }
  const rlimit fewer{40, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  watch.add(group, peers);
  theirs.reset();
  EXPECT_EQ(group->wait_for_word().rfind("lost 4 closed", 0), 0u);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
}

// Groups share the descriptor of a process.
TEST_F(WatchTest, TheEndOfAProcessIsToldToEveryGroupThatIsLeft) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const UniqueFd& pidfd = kept.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (!pidfd) GTEST_SKIP() << "this kernel has no pidfd_open";
  const auto second = std::make_shared<Listener>(), removed = std::make_shared<Listener>();
  watch.add(group, {{4, mine.get(), pidfd.get(), false}});
  watch.add(removed, {{4, -1, pidfd.get(), false}});
  watch.add(second, {{1, -1, pidfd.get(), false}});
  watch.remove(removed.get());
  ::kill(child, SIGKILL);
  EXPECT_EQ(group->wait_for_word(), std::string("lost 4 ") + kDied);
  EXPECT_EQ(second->wait_for_word(), std::string("lost 1 ") + kDied);
  EXPECT_EQ(removed.use_count(), 1);
  ::waitpid(child, nullptr, 0);
}

TEST_F(WatchTest, WhenItCannotWatchEveryGroupIsTold) {
  watch.add(group, {{4, mine.get(), -1, false}});
  const int dead = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    if (std::filesystem::read_symlink(entry.path(), closed) != "anon_inode:[eventpoll]") continue;
    ASSERT_GE(::dup2(dead, std::stoi(entry.path().filename().string())), 0);
  }
  ::close(dead);
  EXPECT_EQ(group->wait_for_word().rfind("watch_failed ", 0), 0u);
}

TEST_F(WatchTest, AGroupWithAPeerThatCannotBeWatchedIsNotWatched) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(watch.add(group, {{4, mine.get(), -1, false}, {5, file.get(), -1, false}}), Error);
  EXPECT_EQ(group.use_count(), 1);
  watch.add(group, {{4, mine.get(), -1, false}});  // its socket is watched once
  theirs.reset();
  EXPECT_EQ(group->wait_for_word().rfind("lost 4", 0), 0u);
}

TEST_F(WatchTest, HeartbeatsArriveWhereAskedFor) {
  watch.add(group, {{4, mine.get(), -1, true}});
  ControlParser parser;
  std::vector<ControlMessage> got;
  const Deadline limit = Deadline::after(std::chrono::seconds(30));
  while (got.size() < 2 && !limit.passed()) ASSERT_EQ(drain_control(theirs.get(), parser, got), Drained::kOpen);
  ASSERT_GE(got.size(), 2u);
  EXPECT_EQ(got[0].kind, ControlKind::kHeartbeat);
}

TEST_F(WatchTest, RemovedGroupsHearNothing) {
  watch.add(group, {{4, mine.get(), -1, false}});
  watch.remove(group.get());
  theirs.reset();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd& a = kept.emplace_back(ends[0]);
  UniqueFd b(ends[1]);
  const auto other = std::make_shared<Listener>();
  watch.add(other, {{1, a.get(), -1, false}});
  b.reset();
  EXPECT_EQ(other->wait_for_word().rfind("lost 1", 0), 0u);  // a later event came through; the earlier one never did
  EXPECT_EQ(group.use_count(), 1);
}

}  // namespace
}  // namespace ringdp::comm
