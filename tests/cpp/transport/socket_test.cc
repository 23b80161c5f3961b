#include "transport/socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ringdp::transport {
namespace {

struct SocketPair {
  SocketPair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  UniqueFd a, b;
};

const WaitPolicy kForever{Deadline::never(), nullptr};

WaitPolicy soon(std::function<void()> on_idle = nullptr) {
  return {Deadline::after(std::chrono::milliseconds(20)), std::move(on_idle)};
}

TEST(Socket, AFrameLargerThanTheBuffersArrivesWhole) {
  SocketPair pair;
  std::vector<unsigned char> out(4 << 20), in(out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(i * 31 + (i >> 8));
  std::thread sender([&] { EXPECT_TRUE(send_all(pair.a.get(), out.data(), out.size(), kForever)); });
  EXPECT_TRUE(recv_all(pair.b.get(), in.data(), in.size(), kForever));
  sender.join();
  EXPECT_EQ(in, out);
}

TEST(Socket, AClosedPeerIsFalseNotAnError) {
  SocketPair pair;
  pair.a.reset();
  char byte = 0;
  EXPECT_FALSE(recv_all(pair.b.get(), &byte, 1, kForever));
  EXPECT_FALSE(send_all(pair.b.get(), &byte, 1, kForever));
}

TEST(Socket, HalfAFrameThenTheEndIsFalse) {
  SocketPair pair;
  ASSERT_EQ(::send(pair.a.get(), "abc", 3, 0), 3);
  pair.a.reset();
  char bytes[4];
  EXPECT_FALSE(recv_all(pair.b.get(), bytes, sizeof bytes, kForever));
}

TEST(Socket, TheDeadlineEndsAWait) {
  SocketPair pair;
  char byte = 0;
  try {
    recv_all(pair.b.get(), &byte, 1, soon());
    FAIL() << "nothing was sent";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
}

TEST(Socket, OnIdleIsCalledAtTheDeadlineAndItsErrorWins) {
  SocketPair pair;
  const WaitPolicy policy = soon([] { throw Error(ErrorKind::kAborted, "given up"); });
  try {
    wait_for(pair.b.get(), POLLIN, policy);
    FAIL() << "nothing was sent";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kAborted);
  }
  EXPECT_THROW(pause_for(1000, policy), Error);
}

TEST(Socket, OnIdleIsCalledWhileNothingHappensLongBeforeTheDeadline) {
  SocketPair pair;
  int calls = 0;
  const WaitPolicy policy{Deadline::never(), [&] {
                            ++calls;
                            EXPECT_EQ(::send(pair.a.get(), "x", 1, 0), 1);
                          }};
  char byte = 0;
  EXPECT_TRUE(recv_all(pair.b.get(), &byte, 1, policy));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(byte, 'x');
}

}  // namespace
}  // namespace ringdp::transport
