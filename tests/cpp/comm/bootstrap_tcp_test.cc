#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "comm/bootstrap_steps.h"
#include "comm/memory_store.h"
#include "comm/meshes.h"
#include "comm/rank_threads.h"
#include "comm/sessions.h"
#include "environment.h"
#include "transport/socket.h"
#include "transport/tcp/certificates.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::comm {
namespace {

constexpr int kWorld = 4, kStreams = 3;
const transport::WaitPolicy kForever{Deadline::never(), nullptr};

Settings over_loopback() {
  Settings settings;
  settings.socket_ifname = "lo";
  return settings;
}

TcpExchange connect_all(const Session& session, const std::vector<int>& peers, bool one_host) {
  const TcpDoor door = TcpDoor::open(session.settings, one_host, session.store_exchange.round_trip());
  return exchange_tcp(session, door, exchange_endpoints(session, door.endpoint, peers));
}

// Ranks 0 and 1 share memory, say, and so do 2 and 3: only pairs across are connected.
std::vector<int> peers_of(int rank) { return rank < 2 ? std::vector<int>{2, 3} : std::vector<int>{0, 1}; }

TEST(TcpExchange, EveryPairHasItsSocketsAndTheyMeetTheRightOnes) {
  MemoryStore store;
  Settings settings = over_loopback();
  settings.tcp_streams = kStreams;
  run_ranks(kWorld, [&](int rank) {
    StoreExchange store_exchange(store, rank, kWorld, Deadline::never());
    const TcpExchange mine = connect_all(session_of(store_exchange, settings), peers_of(rank), false);
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
    StoreExchange store_exchange(store, rank, kWorld, Deadline::never());
    const TcpExchange mine = connect_all(session_of(store_exchange, settings), peers_of(rank), false);
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
    StoreExchange store_exchange(store, rank, 2, Deadline::never());
    const TcpExchange mine = connect_all(session_of(store_exchange, settings), {1 - rank}, false);
    EXPECT_EQ(mine.connections.at(1 - rank).bulk.size(), 2u);
  });
}

TEST(TcpExchange, LoopbackHasNoSpeedAndGetsOneStream) {
  MemoryStore store;
  const Settings settings = over_loopback();
  run_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store, rank, 2, Deadline::never());
    const TcpExchange mine = connect_all(session_of(store_exchange, settings), {1 - rank}, false);
    EXPECT_EQ(mine.connections.at(1 - rank).bulk.size(), 1u);
  });
}

TcpEndpoint endpoint_of(const char* host, int streams, int store_ms) {
  return {*transport::SocketAddress::parse(host, 80), streams, store_ms};
}

TEST(TcpExchange, RanksThatAreFarApartHaveSeveralStreams) {
  struct Case {
    int64_t setting;
    TcpEndpoint a, b;
    int count;
    const char* why;
  };
  const char *const here = "10.0.0.1", *const there = "10.0.0.2";
  for (const auto& [setting, a, b, count, why] : {
           Case{0, endpoint_of(here, 1, 0), endpoint_of(there, 1, 9), 1, ""},
           Case{0, endpoint_of(here, 1, 5), endpoint_of(there, 1, 5), 4, "4 streams, 10 ms apart by way of the store"},
           Case{0, endpoint_of(here, 1, 0), endpoint_of(there, 8, 52), 4, "4 streams, 52 ms apart by way of the store"},
           Case{0, endpoint_of(here, 8, 30), endpoint_of(there, 8, 30), 8, "8 streams for the speed of the interface"},
           Case{0, endpoint_of(here, 1, 30), endpoint_of(here, 1, 30), 1, ""},
           Case{1, endpoint_of(here, 1, 30), endpoint_of(there, 1, 30), 1, ""},
           Case{5, endpoint_of(here, 5, 30), endpoint_of(there, 2, 30), 2, "2 streams (tcp_streams)"},
           Case{0, endpoint_of(here, 1, 2147483647), endpoint_of(there, 1, 2147483647), 4, "4294967294 ms"},
       }) {
    Settings settings;
    settings.tcp_streams = setting;
    for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
      const Streams streams = streams_between(settings, 2, one, other);
      EXPECT_EQ(streams.count, count);
      EXPECT_NE(streams.why.find(why), std::string::npos) << streams.why;
      EXPECT_EQ(streams.why.empty(), count == 1);
      EXPECT_EQ(streams_between(settings, 3, one, other).count, std::min(a.streams, b.streams));
      EXPECT_EQ(streams.far, a.store_ms + int64_t{b.store_ms} >= 10 && a.address.host() != b.address.host());
    }
  }
}

// A door that is opened again says the shorter round trip, since its own is that of one request.
TEST(TcpDoor, SaysHowFarTheStoreIs) {
  using std::chrono::milliseconds;
  const Settings settings = over_loopback();
  EXPECT_EQ(TcpDoor::open(settings, true, std::chrono::microseconds(51'600)).endpoint.store_ms, 52);
  EXPECT_EQ(TcpDoor::open(settings, false, milliseconds(20)).endpoint.store_ms, 20);
  EXPECT_EQ(TcpDoor::reopened(settings, milliseconds(7))->endpoint.store_ms, 7);
  EXPECT_EQ(TcpDoor::reopened(settings, milliseconds(70))->endpoint.store_ms, 20);
  EXPECT_EQ(TcpDoor::open(settings, false, std::chrono::nanoseconds::max()).endpoint.store_ms, 60'000);
}

// Its first connection is reset once it has been let in.
TEST(TcpExchange, APeerThatIsGoneAfterItsHelloIsLost) {
  MemoryStore store;
  const Settings settings = over_loopback();
  const auto error = errors_of_ranks(2, [&](int rank) {
    StoreExchange store_exchange(store, rank, 2, Deadline::never());
    const Session session = session_of(store_exchange, settings);
    if (rank == 0) {
      connect_all(session, {1}, true);
      return;
    }
    const UniqueFd own = transport::listen_on(*transport::SocketAddress::parse("127.0.0.1", 0));
    store_exchange.publish(
        "address", "127.0.0.1 " + std::to_string(transport::SocketAddress::bound_to(own.get()).port()) + " 1 0");
    const std::string zero = store_exchange.gather("address", {0}).front();
    const size_t space = zero.find(' ');
    const auto address = transport::SocketAddress::parse(zero.substr(0, space), std::stoi(zero.substr(space + 1)));
    std::vector<UniqueFd> sockets;
    for (const auto purpose :
         {transport::Purpose::kControl, transport::Purpose::kMessages, transport::Purpose::kBulk}) {
      sockets.push_back(transport::connect_tcp(*address));
      const int fd = sockets.back().get();
      const transport::HelloFrame hello = encode(session.hello(1, 0, purpose));
      transport::HelloFrame reply;
      EXPECT_TRUE(send_all(fd, hello.data(), hello.size(), kForever));
      EXPECT_TRUE(recv_all(fd, reply.data(), reply.size(), kForever));
      if (purpose != transport::Purpose::kControl) continue;
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
       {"", "127.0.0.1", "127.0.0.1 ", "127.0.0.1 80", "127.0.0.1 80 1", "127.0.0.1 0 1 0", "127.0.0.1 70000 1 0",
        "localhost 80 1 0", "1.2.3.4 5x 1 0", "1.2.3.4 80 0 0", "1.2.3.4 80 65 0", "1.2.3.4 80 1 x"}) {
    MemoryStore store;
    const Settings settings = over_loopback();
    StoreExchange zero(store, 0, 2, Deadline::never()), one(store, 1, 2, Deadline::never());
    zero.publish("address", bad);
    try {
      connect_all(session_of(one, settings), {0}, true);
      FAIL() << "accepted '" << bad << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.culprit(), 0);
      expect_message(error, {"rank 0", "malformed address", "1/address/0"});
    }
  }
}

TEST(TcpExchange, ARankWhereNobodyListensIsNamedAtTheDeadline) {
  MemoryStore store;
  const Settings settings = over_loopback();
  StoreExchange one(store, 1, 2, soon());
  const auto at_once = std::chrono::nanoseconds(0);
  const TcpDoor door = TcpDoor::open(settings, true, at_once);
  const std::map<int, TcpEndpoint> endpoints{
      {0, TcpDoor::open(settings, true, at_once).endpoint}};  // which closes at once
  try {
    exchange_tcp(session_of(one, settings), door, endpoints);
    FAIL() << "nobody listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error.culprit(), 0);
    expect_message(error, {"for rank 0 to connect (127.0.0.1:", ": Connection refused; RINGDP_SOCKET_IFNAME chooses"});
  }
}

TEST(TcpExchange, AnUnknownInterfaceIsRefusedBeforeAnythingOpens) {
  MemoryStore store;
  Settings settings;
  settings.socket_ifname = "no-such-interface";
  StoreExchange store_exchange(store, 0, 2, Deadline::never());
  try {
    connect_all(session_of(store_exchange, settings), {1}, true);
    FAIL() << "there is no such interface";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    expect_message(error, {"no-such-interface", "lo (127.0.0.1)"});
  }
  EXPECT_FALSE(store.has({"1/address/0"}));
}

// How often ranks wait for what the store has.
class CountingStore : public MemoryStore {
 public:
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    ++rounds;
    return MemoryStore::get(keys);
  }
  std::atomic<int> rounds{0};
};

TEST(GroupsBetweenHosts, NeedOneRoundThroughTheStoreOnceTheirProcessKnowsTheInterface) {
  for (const int world : {2, 3, 8}) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      CountingStore store;
      Meshes group(store, world, over_loopback(), /*hosts=*/world);
      exchange_on_all_links(group.meshes);
      if (attempt == 0) continue;
      EXPECT_EQ(store.rounds, world);
      EXPECT_FALSE(store.has({"1/address/0"}));
    }
  }
}

// Each rank has its own settings.
std::vector<Mesh> meshes_of(MemoryStore& store, const std::vector<Settings>& settings, int hosts) {
  std::vector<Mesh> meshes(settings.size());
  const std::vector<transport::Doorbell> bells(settings.size());
  const int world = static_cast<int>(settings.size());
  run_ranks(world, [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    meshes[at] =
        connect_as(identity_on(rank, world, hosts), store, rank, world, settings[at], bells[at], Deadline::never());
  });
  return meshes;
}

TEST(GroupsBetweenHosts, AskForAddressesWhereARankDoesNotKnowItsOwnYet) {
  CountingStore first;
  Meshes known(first, 2, over_loopback(), /*hosts=*/2);
  for (const size_t odd : {0, 1}) {
    CountingStore store;
    std::vector<Settings> settings(3, over_loopback());
    settings[odd].socket_ifname.clear();
    std::vector<Mesh> meshes = meshes_of(store, settings, /*hosts=*/3);
    EXPECT_EQ(store.rounds, 6) << "rank " << odd;
    exchange_on_all_links(meshes);
    CountingStore again;
    Meshes primed(again, 2, over_loopback(), /*hosts=*/2);
  }
}

TEST(GroupsBetweenHosts, LeaveLoopbackToGroupsOfOneHost) {
  CountingStore first;
  Meshes known(first, 2, over_loopback(), /*hosts=*/2);
  CountingStore second;
  Settings settings = over_loopback();
  settings.transport = TransportChoice::kTcp;
  Meshes local(second, 2, settings);
  EXPECT_TRUE(second.has({"1/address/0", "1/address/1"}));
  exchange_on_all_links(local.meshes);
}

TEST(GroupsBetweenHosts, AskForAddressesOfAnotherJob) {
  CountingStore first;
  Meshes known(first, 2, over_loopback(), /*hosts=*/2);
  const Variable master("MASTER_ADDR", "127.0.0.3");  // another job
  CountingStore second;
  Meshes asked(second, 2, over_loopback(), /*hosts=*/2);
  EXPECT_EQ(second.rounds, 4);
  exchange_on_all_links(asked.meshes);
}

// Groups whose TCP is under TLS: how they connect, and the errors when they cannot.

using transport::Certificates;

class TlsGroups : public testing::Test {
 protected:
  void SetUp() override { RINGDP_NEEDS_CERTIFICATES(); }

  static Settings over_tls(const std::string& name = "member", const std::string& authority = "ca") {
    return Certificates::get().put_into(with(TransportChoice::kTcp), name, authority);
  }

  // What each rank is told where one of them, `odd`, has other settings.
  static std::vector<std::optional<Error>> errors_with(const Settings& others, int odd, const Settings& of_odd) {
    MemoryStore store;
    const std::vector<transport::Doorbell> bells(3);
    return errors_of_ranks(3, [&](int rank) {
      connect(store, rank, 3, rank == odd ? of_odd : others, bells[static_cast<size_t>(rank)], Deadline::after(kGuard));
    });
  }

  static constexpr auto kGuard = std::chrono::seconds(60);  // against hanging
};

// Before a rank's peers, other processes connect to it: with a plain-text hello, with garbage, and silent.
class BusyStore : public MemoryStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    if (key.rfind("1/address/", 0) == 0) {
      const size_t space = value.find(' ');
      const auto to = transport::SocketAddress::parse(value.substr(0, space), std::stoi(value.substr(space + 1)));
      for (const std::string said : {"ringdp\r\n in plain", "\x16\x03\x01\x02 garbage behind a header", ""}) {
        UniqueFd stranger = transport::connect_tcp(*to);
        ::send(stranger.get(), said.data(), said.size(), MSG_NOSIGNAL);
        const std::lock_guard lock(mutex);
        strangers.push_back(std::move(stranger));
      }
    }
    MemoryStore::set(key, value);
  }
  std::mutex mutex;  // ranks are threads
  std::vector<UniqueFd> strangers;
};

TEST_F(TlsGroups, RanksMeetUnderTlsWhoeverElseIsAtTheDoor) {
  BusyStore store;
  Settings settings = over_tls();
  settings.tcp_streams = 2;
  Meshes group(store, 2, settings);
  EXPECT_EQ(store.strangers.size(), 6u);
  for (const size_t rank : {0, 1}) {
    EXPECT_NE(group.meshes[rank].peers[1 - rank].why.find("TLS 1.3"), std::string::npos);
  }
  exchange_on_all_links(group.meshes);
}

TEST_F(TlsGroups, ARankOfAnotherAuthorityIsRefusedByBothSides) {
  for (const int odd : {0, 2}) {
    const auto errors = errors_with(over_tls(), odd, over_tls("stranger", "other"));
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " was content";
      expect_message(*errors[rank], {"TLS with rank ", "at 127.0.0.1:", "certificate", "RINGDP_TLS_CA="});
    }
  }
}

TEST_F(TlsGroups, ARankWhoseFilesWillNotDoTellsAll) {
  Settings half = over_tls();
  half.tls_key = "";
  for (const auto& [settings, said] :
       {std::pair{over_tls("expired"), "certificate has expired"}, std::pair{half, "RINGDP_TLS_KEY is not set"}}) {
    const auto errors = errors_with(over_tls(), 1, settings);
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " was content";
      EXPECT_EQ(errors[rank]->kind(), rank == 1 ? ErrorKind::kInvalidArgument : ErrorKind::kAborted);
      expect_message(*errors[rank], {said});
    }
  }
}

TEST_F(TlsGroups, ARankInPlainIsRefused) {
  for (const auto& error : errors_with(over_tls(), 1, with(TransportChoice::kTcp))) {
    ASSERT_TRUE(error);
    expect_message(*error, {"settings differ", "tls=on", "tls=off", "rank 1"});
  }
}

// What rank 1 says of a rank 0 whose port answers with `said`, if at all.
Error error_of_guest(const std::string& said, const Settings& settings) {
  MemoryStore store;
  StoreExchange zero(store, 0, 2, Deadline::never()), one(store, 1, 2, soon());
  const auto tls = std::make_shared<const transport::TlsContext>(settings.tls_cert, settings.tls_key, settings.tls_ca);
  const Session guest = session_of(one, settings, tls);
  const UniqueFd listener = transport::listen_on(*transport::SocketAddress::parse("127.0.0.1", 0));
  const int port = transport::SocketAddress::bound_to(listener.get()).port();
  zero.publish("address", "127.0.0.1 " + std::to_string(port) + " 1 0");
  std::vector<UniqueFd> accepted;
  std::thread host([&] {
    pollfd entry{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    accepted.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::send(accepted.back().get(), said.data(), said.size(), MSG_NOSIGNAL);
  });
  std::optional<Error> error;
  try {
    connect_all(guest, {0}, true);
  } catch (const Error& thrown) {
    error = thrown;
  }
  host.join();
  return error ? *error : Error(ErrorKind::kInternal, "nothing was thrown");
}

TEST_F(TlsGroups, APeerThatAnswersInPlainIsNamed) {
  const Error error = error_of_guest("ringdp\r\n", over_tls());
  EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
  EXPECT_EQ(error.culprit(), 0);
  expect_message(error, {"rank 1: TLS with rank 0 at 127.0.0.1:", "it does not speak TLS"});
}

TEST_F(TlsGroups, APeerThatSaysNothingIsNamedAtTheDeadline) {
  const Error error = error_of_guest("", over_tls());
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 0);
}

}  // namespace
}  // namespace ringdp::comm
