#include "comm/tcp_exchange.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "comm/memory_store.h"
#include "comm/rank_threads.h"
#include "transport/socket_io.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

constexpr int kWorld = 4, kStreams = 3;
const transport::Patience kForever{Deadline::never(), nullptr};

Settings over_loopback() {
  Settings settings;
  settings.socket_ifname = "lo";
  return settings;
}

// Ranks 0 and 1 share memory, say, and so do 2 and 3: only pairs across are connected.
std::vector<int> peers_of(int rank) { return rank < 2 ? std::vector<int>{2, 3} : std::vector<int>{0, 1}; }

TEST(TcpExchange, EveryPairHasItsSocketsAndTheyMeetTheRightOnes) {
  MemoryStore store;
  Settings settings = over_loopback();
  settings.tcp_streams = kStreams;
  run_ranks(kWorld, [&](int rank) {
    RollCall roll_call(store, rank, kWorld, Deadline::never());
    const TcpExchange mine = exchange_tcp(Session::begin(roll_call, settings), peers_of(rank), false);
    EXPECT_EQ(mine.address, "127.0.0.1 (lo)");
    ASSERT_EQ(mine.connections.size(), 2u);
    for (const auto& [peer, connection] : mine.connections) {
      EXPECT_EQ(connection.address.rfind("127.0.0.1:", 0), 0u) << connection.address;
      ASSERT_EQ(connection.bulk.size(), static_cast<size_t>(kStreams));
      const int control = 10 * rank, messages = 10 * rank + 1;
      EXPECT_TRUE(send_all(connection.control.get(), &control, sizeof control, kForever));
      EXPECT_TRUE(send_all(connection.messages.get(), &messages, sizeof messages, kForever));
      for (int stream = 0; stream < kStreams; ++stream) {
        const int bulk = 10 * rank + 2 + stream;
        EXPECT_TRUE(send_all(connection.bulk[stream].get(), &bulk, sizeof bulk, kForever));
      }
    }
    for (const auto& [peer, connection] : mine.connections) {
      int control = -1, messages = -1;
      EXPECT_TRUE(recv_all(connection.control.get(), &control, sizeof control, kForever));
      EXPECT_TRUE(recv_all(connection.messages.get(), &messages, sizeof messages, kForever));
      EXPECT_EQ(control, 10 * peer);
      EXPECT_EQ(messages, 10 * peer + 1);
      for (int stream = 0; stream < kStreams; ++stream) {
        int bulk = -1;
        EXPECT_TRUE(recv_all(connection.bulk[stream].get(), &bulk, sizeof bulk, kForever));
        EXPECT_EQ(bulk, 10 * peer + 2 + stream);
      }
    }
  });
}

TEST(TcpExchange, OnlyControlSocketsTimeOutOnUnacknowledgedBytes) {
  MemoryStore store;
  Settings settings = over_loopback();
  settings.unreachable_ms = 1234;
  run_ranks(kWorld, [&](int rank) {
    RollCall roll_call(store, rank, kWorld, Deadline::never());
    const TcpExchange mine = exchange_tcp(Session::begin(roll_call, settings), peers_of(rank), false);
    const auto user_timeout = [](const transport::Socket& fd) {
      int ms = -1;
      socklen_t size = sizeof ms;
      EXPECT_EQ(::getsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &size), 0);
      return ms;
    };
    for (const auto& [peer, connection] : mine.connections) {
      EXPECT_EQ(user_timeout(connection.control), 1234 + 1000);
      EXPECT_EQ(user_timeout(connection.bulk.at(0)), 0);
      EXPECT_EQ(user_timeout(connection.messages), 0);
    }
  });
}

// Each side is asked for what its own interface is worth: the smaller number counts on both.
TEST(TcpExchange, ThePairHasAsManyStreamsAsTheOneWhoWantsFewer) {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    Settings settings = over_loopback();
    settings.tcp_streams = rank == 0 ? 5 : 2;
    RollCall roll_call(store, rank, 2, Deadline::never());
    const TcpExchange mine = exchange_tcp(Session::begin(roll_call, settings), {1 - rank}, false);
    EXPECT_EQ(mine.connections.at(1 - rank).bulk.size(), 2u);
  });
}

TEST(TcpExchange, LoopbackHasNoSpeedAndGetsOneStream) {
  MemoryStore store;
  const Settings settings = over_loopback();
  run_ranks(2, [&](int rank) {
    RollCall roll_call(store, rank, 2, Deadline::never());
    const TcpExchange mine = exchange_tcp(Session::begin(roll_call, settings), {1 - rank}, false);
    EXPECT_EQ(mine.connections.at(1 - rank).bulk.size(), 1u);
  });
}

// Its first connection is reset once it has been let in.
TEST(TcpExchange, APeerThatIsGoneAfterItsHelloIsLost) {
  MemoryStore store;
  const Settings settings = over_loopback();
  const auto error = errors_of_ranks(2, [&](int rank) {
    RollCall roll_call(store, rank, 2, Deadline::never());
    const Session session = Session::begin(roll_call, settings);
    if (rank == 0) {
      exchange_tcp(session, {1}, true);
      return;
    }
    const UniqueFd own = transport::listen_on(*transport::SocketAddress::parse("127.0.0.1", 0));
    roll_call.publish("address", "127.0.0.1 " + std::to_string(transport::SocketAddress::bound_to(own.get()).port()) + " 1");
    const std::string zero = roll_call.gather("address", {0}).front();
    const size_t space = zero.find(' ');
    const auto address = transport::SocketAddress::parse(zero.substr(0, space), std::stoi(zero.substr(space + 1)));
    std::vector<UniqueFd> sockets;
    for (const auto channel : {transport::Channel::kControl, transport::Channel::kMessages, transport::Channel::kBulk}) {
      sockets.push_back(transport::connect_tcp(*address, kForever));
      const int fd = sockets.back().get();
      const transport::HelloFrame hello = encode(session.hello(1, 0, channel));
      transport::HelloFrame reply;
      EXPECT_TRUE(send_all(fd, hello.data(), hello.size(), kForever));
      EXPECT_TRUE(recv_all(fd, reply.data(), reply.size(), kForever));
      if (channel != transport::Channel::kControl) continue;
      const linger at_once{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      sockets.back().reset();
    }
  })[0];
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(error->culprit(), 1);
  expect_message(*error, {"rank 1 closed its connection while the ranks met"});
}

TEST(TcpExchange, AMalformedAddressNamesRankAndKey) {
  for (const char* bad :
       {"", "127.0.0.1", "127.0.0.1 ", "127.0.0.1 80", "127.0.0.1 80 ", "127.0.0.1 0 1", "127.0.0.1 70000 1", "localhost 80 1",
        "1.2.3.4 5x 1", "1.2.3.4 80 0", "1.2.3.4 80 65", "1.2.3.4 80 1x"}) {
    MemoryStore store;
    const Settings settings = over_loopback();
    RollCall zero(store, 0, 2, Deadline::never()), one(store, 1, 2, Deadline::never());
    Session::begin(zero, settings);
    zero.publish("address", bad);
    try {
      exchange_tcp(Session::begin(one, settings), {0}, true);
      FAIL() << "accepted '" << bad << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.culprit(), 0);
      expect_message(error, {"rank 0", "malformed address", "1/address/0"});
    }
  }
}

TEST(TcpExchange, AnUnknownInterfaceIsRefusedBeforeAnythingOpens) {
  MemoryStore store;
  Settings settings;
  settings.socket_ifname = "no-such-interface";
  RollCall roll_call(store, 0, 2, Deadline::never());
  try {
    exchange_tcp(Session::begin(roll_call, settings), {1}, true);
    FAIL() << "there is no such interface";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    expect_message(error, {"no-such-interface", "lo (127.0.0.1)"});
  }
  EXPECT_FALSE(store.has({"1/address/0"}));
}

}  // namespace
}  // namespace ringdp::comm
