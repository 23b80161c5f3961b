#include "transport/doorbell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <thread>

#include "base/error.h"

namespace ringdp::transport {
namespace {

bool readable(const Doorbell& bell, int wait_ms = 0) {
  pollfd polled{bell.fd(), POLLIN, 0};
  return ::poll(&polled, 1, wait_ms) == 1;
}

TEST(Doorbell, IsQuietUntilRungAndAfterDraining) {
  const Doorbell bell;
  EXPECT_FALSE(readable(bell));
  bell.ring();
  bell.ring();
  EXPECT_TRUE(readable(bell));
  bell.drain();
  EXPECT_FALSE(readable(bell));
  bell.drain();  // a spurious wake-up must not block
}

TEST(Doorbell, IsNonBlockingAndClosedOnExec) {
  const Doorbell bell;
  EXPECT_TRUE(::fcntl(bell.fd(), F_GETFL) & O_NONBLOCK);
  EXPECT_TRUE(::fcntl(bell.fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(Doorbell, APeersBellIsHeldOnceWhoeverSentIt) {
  const Doorbell owner, other;
  const Doorbell first = Doorbell::of_peer(UniqueFd(::dup(owner.fd())));
  UniqueFd again(::dup(owner.fd()));
  const int received = again.get();
  const Doorbell second = Doorbell::of_peer(std::move(again));
  const Doorbell third = Doorbell::of_peer(UniqueFd(::dup(other.fd())));
  // Kernels before 5.2 give eventfds no number; then each keeps its own descriptor.
  if (first.fd() == second.fd()) {
    EXPECT_TRUE(::fcntl(received, F_GETFD) == -1 || received == third.fd());
  }
  EXPECT_NE(third.fd(), first.fd());
  second.ring();
  EXPECT_TRUE(readable(owner));
  EXPECT_FALSE(readable(other));
}

TEST(Doorbell, AClosedBellIsNotTakenForANewOne) {
  for (int round = 0; round < 3; ++round) {  // the kernel gives the number, and often the descriptor, out again
    const Doorbell owner;
    const Doorbell peer = Doorbell::of_peer(UniqueFd(::dup(owner.fd())));
    peer.ring();
    EXPECT_TRUE(readable(owner));
  }
}

TEST(Doorbell, APeersCopyRingsTheOwner) {
  const Doorbell owner;
  const Doorbell copy{UniqueFd(::dup(owner.fd()))};
  copy.ring();
  EXPECT_TRUE(readable(owner));
}

TEST(Doorbell, RingingAFullCounterReturnsAndKeepsErrno) {
  const Doorbell bell;
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(::write(bell.fd(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  errno = ENOENT;
  bell.ring();
  EXPECT_EQ(errno, ENOENT);
  EXPECT_TRUE(readable(bell));
}

TEST(Doorbell, WakesASleeperFromAnotherThread) {
  constexpr int kHangMs = 60'000;  // a guard against hanging, not a time that is tested
  const Doorbell there, back;
  for (int round = 0; round < 200; ++round) {
    std::thread peer([&] {
      there.ring();
      EXPECT_TRUE(readable(back, kHangMs));
      back.drain();
    });
    EXPECT_TRUE(readable(there, kHangMs));
    there.drain();
    back.ring();
    peer.join();
  }
}

TEST(Doorbell, DrainingSomethingElseIsAnError) {
  const Doorbell not_open{UniqueFd()};
  try {
    not_open.drain();
    FAIL() << "drained a closed descriptor";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
}

}  // namespace
}  // namespace ringdp::transport
