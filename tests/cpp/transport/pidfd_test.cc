#include "transport/pidfd.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace ringdp::transport {
namespace {

bool ended(const UniqueFd& pidfd, int wait_ms) {
  pollfd polled{pidfd.get(), POLLIN, 0};
  return ::poll(&polled, 1, wait_ms) == 1;
}

class PidfdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!open_pidfd(::getpid())) GTEST_SKIP() << "this kernel has no pidfd_open";
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
  const auto first = open_pidfd(child_), again = open_pidfd(child_), own = open_pidfd(::getpid());
  ASSERT_TRUE(first && again && own);
  EXPECT_EQ(first->get(), again->get());
  EXPECT_NE(first->get(), own->get());
  EXPECT_FALSE(ended(*first, 0));
}

TEST_F(PidfdTest, ADeadProcessIsNoticedAndItsDescriptorNotHandedOutAgain) {
  const auto held = open_pidfd(child_);
  ASSERT_TRUE(held);
  const pid_t pid = child_;
  ::kill(pid, SIGKILL);
  EXPECT_FALSE(has_ended(*open_pidfd(::getpid())));
  EXPECT_TRUE(ended(*held, 60'000));
  EXPECT_TRUE(has_ended(*held));
  const auto zombie = open_pidfd(pid);  // still that process, but the held descriptor can no longer prove it
  EXPECT_TRUE(!zombie || zombie->get() != held->get());
  EXPECT_TRUE(exists(pid)) << "not waited for";
  end_child();
  EXPECT_FALSE(exists(pid));
  EXPECT_EQ(open_pidfd(pid), nullptr) << "nothing runs under a pid that was just reaped";
}

}  // namespace
}  // namespace ringdp::transport
