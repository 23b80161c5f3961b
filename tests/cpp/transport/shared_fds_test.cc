#include "transport/shared_fds.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <set>
#include <thread>
#include <vector>

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
  const auto fresh = fds.share(1, [](int) { return false; }, new_fd);
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

}  // namespace
}  // namespace ringdp::transport
