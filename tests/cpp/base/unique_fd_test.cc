// A descriptor is closed exactly once, by its last owner.
#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <type_traits>
#include <utility>

namespace ringdp {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1 || errno != EBADF; }

int open_one() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

TEST(UniqueFd, OwnsNothingByDefault) {
  const UniqueFd fd;
  EXPECT_FALSE(fd);
  EXPECT_EQ(fd.get(), -1);
}

TEST(UniqueFd, ClosesWhatItOwns) {
  const int raw = open_one();
  {
    const UniqueFd fd(raw);
    EXPECT_TRUE(fd);
    EXPECT_EQ(fd.get(), raw);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

// 0 is a descriptor like any other.
TEST(UniqueFd, DescriptorZeroCounts) {
  UniqueFd fd(0);
  EXPECT_TRUE(fd);
  EXPECT_EQ(fd.release(), 0);
}

TEST(UniqueFd, MovingHandsOver) {
  const int raw = open_one();
  UniqueFd first(raw);
  const UniqueFd second(std::move(first));
  EXPECT_EQ(first.get(), -1);
  EXPECT_EQ(second.get(), raw);
  EXPECT_TRUE(is_open(raw));
  EXPECT_FALSE(std::is_copy_constructible_v<UniqueFd>);
  EXPECT_FALSE(std::is_copy_assignable_v<UniqueFd>);
}

TEST(UniqueFd, AssigningClosesTheOldOne) {
  const int old_raw = open_one(), new_raw = open_one();
  UniqueFd target(old_raw), source(new_raw);
  target = std::move(source);
  EXPECT_FALSE(is_open(old_raw));
  EXPECT_EQ(target.get(), new_raw);
  EXPECT_EQ(source.get(), -1);
}

TEST(UniqueFd, AssigningToItselfKeepsIt) {
  const int raw = open_one();
  UniqueFd fd(raw);
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, ReleaseGivesItUpOpen) {
  const int raw = open_one();
  UniqueFd fd(raw);
  EXPECT_EQ(fd.release(), raw);
  EXPECT_FALSE(fd);
  fd.reset();
  EXPECT_TRUE(is_open(raw));
  ::close(raw);
}

TEST(UniqueFd, ResetReplaces) {
  const int old_raw = open_one(), new_raw = open_one();
  UniqueFd fd(old_raw);
  fd.reset(new_raw);
  EXPECT_FALSE(is_open(old_raw));
  EXPECT_EQ(fd.get(), new_raw);
  fd.reset();
  EXPECT_FALSE(is_open(new_raw));
}

}  // namespace
}  // namespace ringdp
