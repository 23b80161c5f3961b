#include "transport/tcp/tcp_link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "base/error.h"
#include "transport/link_suite.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {
namespace {

struct TcpSockets {
  TcpSockets() {
    const UniqueFd listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
    near = connect_tcp(SocketAddress::bound_to(listener.get()), {Deadline::never(), nullptr});
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    far.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    tune_for_bulk(far.get());
  }
  UniqueFd near, far;
};

class TcpPair {
 public:
  TcpPair() {
    TcpSockets sockets;
    links_[0] = std::make_unique<TcpLink>(std::move(sockets.near), 1, "one");
    links_[1] = std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero");
  }
  Link& link(int end) { return *links_[end]; }
  void set_asleep(int, bool) {}
  int wake_fd(int) { return -1; }
  void drain(int) {}

 private:
  std::unique_ptr<Link> links_[2];
};

INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, LinkSuite, testing::Types<TcpPair>);

void expect_lost(TcpLink& link, bool by_sending) {
  char byte = 0;
  try {
    while (true) {
      if (by_sending) {
        link.try_send(&byte, 1);
      } else if (link.try_recv(&byte, 1) == 0) {
        wait_for(link.poll_fd(), POLLIN, {Deadline::never(), nullptr});
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
  EXPECT_GE(pair.link(0).poll_fd(), 0);
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
