#include "transport/fork_shield.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace ringdp::transport {
namespace {

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
