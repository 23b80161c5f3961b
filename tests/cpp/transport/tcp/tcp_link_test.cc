#include "transport/tcp/tcp_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>

#include "base/error.h"
#include "transport/link_suite.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

class TcpPair : public SocketLinks {
 public:
  TcpPair() {
    TcpSockets sockets;
    links_[0] = std::make_unique<TcpLink>(std::move(sockets.near), 1, "one");
    links_[1] = std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero");
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, LinkSuite, testing::Types<TcpPair>);

int fd_of(const Link& link) {
  std::vector<pollfd> polls;
  link.add_polls(POLLIN, polls);
  return polls.at(0).fd;
}

void expect_lost(TcpLink& link, bool by_sending) {
  char byte = 0;
  try {
    while (true) {
      if (by_sending) {
        link.try_send(&byte, 1);
      } else if (link.try_recv(&byte, 1) == 0) {
        wait_for(fd_of(link), POLLIN, {Deadline::never(), nullptr});
      }
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.culprit(), 7);
    for (const char* part : {"rank 7", "10.9.8.7:6"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(TcpLink, IsOfKindTcpAndPollable) {
  TcpPair pair;
  EXPECT_STREQ(pair.link(0).kind(), "tcp");
  std::vector<pollfd> polls;
  pair.link(0).add_polls(POLLOUT, polls);
  ASSERT_EQ(polls.size(), 1u);
  EXPECT_GE(polls[0].fd, 0);
  EXPECT_EQ(polls[0].events, POLLOUT);
}

TEST(TcpLink, BytesSentBeforeTheEndStillArrive) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6");
  ASSERT_EQ(::send(sockets.far.get(), "last", 4, 0), 4);
  sockets.far.reset();
  std::string got;
  char byte = 0;
  while (got.size() < 4) {
    if (link.try_recv(&byte, 1) == 1) got += byte;
  }
  EXPECT_EQ(got, "last");
  expect_lost(link, false);
}

TEST(TcpLink, AClosedPeerIsLostToTheSender) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6");
  sockets.far.reset();
  expect_lost(link, true);
}

TEST(TcpLink, AResetPeerIsLostToTheReceiver) {
  TcpSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6");
  // Lingering for zero seconds makes close() send a reset, as a killed process with unread bytes does.
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(sockets.far.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  sockets.far.reset();
  expect_lost(link, false);
}

TEST(TcpLink, ABadDescriptorIsNotTheSameAsALostPeer) {
  TcpLink link(UniqueFd(), 7, "10.9.8.7:6");
  char byte = 0;
  try {
    link.try_send(&byte, 1);
    FAIL() << "-1 is no socket";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
}

}  // namespace
}  // namespace ringdp::transport
