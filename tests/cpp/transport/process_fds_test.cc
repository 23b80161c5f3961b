#include "transport/process_fds.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "forks.h"

namespace ringdp::transport {
namespace {

const auto kAlways = [](int) { return true; };
UniqueFd new_fd() { return UniqueFd(::eventfd(0, EFD_CLOEXEC)); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(SharedFds, OneDescriptorPerKeyWhileSomebodyHoldsIt) {
  SharedFds fds;
  const auto first = fds.share(1, kAlways, new_fd), again = fds.share(1, kAlways, new_fd);
  const auto other = fds.share(2, kAlways, new_fd);
  EXPECT_EQ(first->get(), again->get());
  EXPECT_NE(first->get(), other->get());
}

TEST(SharedFds, TheLastHolderClosesIt) {
  SharedFds fds;
  auto first = fds.share(1, kAlways, new_fd), again = fds.share(1, kAlways, new_fd);
  const int fd = first->get();
  first.reset();
  EXPECT_TRUE(is_open(fd));
  again.reset();
  EXPECT_FALSE(is_open(fd));
  int opened = 0;
  const auto fresh = fds.share(1, kAlways, [&] { return ++opened, new_fd(); });
  EXPECT_EQ(opened, 1);
}

TEST(SharedFds, AnInvalidOneIsReplacedAndStaysWithItsHolders) {
  SharedFds fds;
  const auto old = fds.share(1, kAlways, new_fd);
  const auto fresh = fds.share(
      1, [](int) { return false; }, new_fd);
  EXPECT_NE(old->get(), fresh->get());
  EXPECT_TRUE(is_open(old->get()));
  EXPECT_EQ(fds.share(1, kAlways, new_fd)->get(), fresh->get());
}

TEST(SharedFds, NothingToOpenIsNull) {
  SharedFds fds;
  EXPECT_EQ(fds.share(1, kAlways, [] { return UniqueFd(); }), nullptr);
  EXPECT_NE(fds.share(1, kAlways, new_fd), nullptr);
}

TEST(SharedFds, ThreadsAgree) {
  SharedFds fds;
  std::vector<SharedFds::Shared> got(8);
  std::vector<std::thread> threads;
  for (auto& mine : got) threads.emplace_back([&] { mine = fds.share(7, kAlways, new_fd); });
  for (auto& thread : threads) thread.join();
  std::set<int> different;
  for (const auto& mine : got) different.insert(mine->get());
  EXPECT_EQ(different.size(), 1u);
}

TEST(SharedFds, AForkedChildMayUseThem) {
  SharedFds fds;
  const auto held = fds.share(1, kAlways, new_fd);
  EXPECT_TRUE(works_in_children([&] { return fds.share(1, kAlways, new_fd) == held; }));
}

bool ended(const UniqueFd& pidfd, int wait_ms) {
  pollfd polled{pidfd.get(), POLLIN, 0};
  return ::poll(&polled, 1, wait_ms) == 1;
}

std::shared_ptr<const UniqueFd> pidfd_of(pid_t pid) { return open_pidfd(pid, start_time_of(pid)); }

class PidfdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!pidfd_of(::getpid())) GTEST_SKIP() << "this kernel has no pidfd_open";
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    while (child_ == 0) ::pause();
  }
  void TearDown() override {
    if (child_ > 0) end_child();
  }
  void end_child() {
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  pid_t child_ = -1;
};

TEST_F(PidfdTest, IsSharedWhileTheProcessLives) {
  const auto first = pidfd_of(child_), again = pidfd_of(child_), own = pidfd_of(::getpid());
  ASSERT_TRUE(first && again && own);
  EXPECT_EQ(first->get(), again->get());
  EXPECT_NE(first->get(), own->get());
  EXPECT_FALSE(ended(*first, 0));
}

TEST_F(PidfdTest, ADeadProcessIsNoticedAndItsDescriptorNotHandedOutAgain) {
  const auto held = pidfd_of(child_);
  ASSERT_TRUE(held);
  const pid_t pid = child_;
  ::kill(pid, SIGKILL);
  EXPECT_FALSE(has_ended(*pidfd_of(::getpid())));
  EXPECT_TRUE(ended(*held, 60'000));
  EXPECT_TRUE(has_ended(*held));
  const auto zombie = pidfd_of(pid);  // still that process, but the held descriptor can no longer prove it
  EXPECT_TRUE(!zombie || zombie->get() != held->get());
  EXPECT_TRUE(exists(pid)) << "not waited for";
  end_child();
  EXPECT_FALSE(exists(pid));
  EXPECT_EQ(pidfd_of(pid), nullptr) << "nothing runs under a pid that was just reaped";
}

TEST_F(PidfdTest, IsOfTheProcessThatStartedThen) {
  const uint64_t start = start_time_of(child_);
  EXPECT_GE(start, start_time_of(::getpid()));
  EXPECT_TRUE(open_pidfd(child_, start));
  EXPECT_FALSE(open_pidfd(child_, start + 1)) << "another process has had its pid";
  EXPECT_FALSE(open_pidfd(child_, 0)) << "/proc did not show it when it was asked";
}

// Whatever the command is called: its name is in front of the fields, in parentheses.
TEST(StartTime, IsReadBehindTheNameOfTheCommand) {
  const uint64_t start = start_time_of(::getpid());
  char name[16] = {};
  ASSERT_EQ(::prctl(PR_GET_NAME, name), 0);
  ASSERT_EQ(::prctl(PR_SET_NAME, "a) R 1 (b"), 0);
  EXPECT_EQ(start_time_of(::getpid()), start);
  ::prctl(PR_SET_NAME, name);
  EXPECT_NE(start, 0u);
  EXPECT_EQ(start_time_of(-1), 0u);
}

class ForkShieldTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    mine_.reset(ends[0]);
    theirs_.reset(ends[1]);
  }
  void TearDown() override {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  void fork_one_that_stays() {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reading(ends[0]), writing(ends[1]);
    child_ = ::fork();
    char byte = 0;
    if (child_ == 0 && ::write(writing.get(), &byte, 1) == 1) {
      for (;;) ::pause();
    }
    ASSERT_EQ(::read(reading.get(), &byte, 1), 1);  // it has what it will have
  }
  // Whether the other side sees the end of this one.
  bool ends_with_this_process() {
    mine_.reset();
    pollfd polled{theirs_.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
  }
  UniqueFd mine_, theirs_;
  pid_t child_ = -1;
};

TEST_F(ForkShieldTest, AChildKeepsNoCopy) {
  ForkShield shield({mine_.get()});
  fork_one_that_stays();
  EXPECT_TRUE(ends_with_this_process());
}

TEST_F(ForkShieldTest, AChildKeepsWhatIsShieldedNoMore) {
  {
    ForkShield first({mine_.get()});
    ForkShield second = std::move(first);
    first = std::move(second);
  }
  fork_one_that_stays();
  EXPECT_FALSE(ends_with_this_process());
}

// The child's copy of the owner closes the number later: it must not be another file's by then.
TEST_F(ForkShieldTest, TheNumberStaysTakenInTheChild) {
  std::optional<ForkShield> shield(std::vector<int>{mine_.get()});
  child_ = ::fork();
  if (child_ == 0) {
    const UniqueFd lowest_free(::dup(theirs_.get()));
    const char byte = 0;
    const bool dead = ::send(mine_.get(), &byte, 1, MSG_NOSIGNAL) < 0 && lowest_free.get() != mine_.get();
    shield.reset();
    ::_exit(dead && ::close(mine_.release()) == 0 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(std::exchange(child_, -1), &status, 0);
  EXPECT_EQ(status, 0);
  const char byte = 0;
  EXPECT_EQ(::send(mine_.get(), &byte, 1, MSG_NOSIGNAL), 1) << "the parent's is as it was";
}

}  // namespace
}  // namespace ringdp::transport
