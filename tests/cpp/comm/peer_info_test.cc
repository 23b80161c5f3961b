// What a rank says of itself, and what is told of a peer that fails.
#include "comm/peer_info.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/peer_state.h"
#include "transport/hello.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

PeerInfo sample_info() {
  return {transport::local_identity(), transport::UnixListener::open().name, shared_settings(Settings{}), {}, 0, 3};
}

TEST(PeerInfo, SurvivesTheStore) {
  for (const bool with_socket : {true, false}) {
    PeerInfo info = sample_info();
    if (!with_socket) info.socket_name.clear();
    info.thresholds.direct_bytes += with_socket;
    info.heap_bytes = with_socket ? int64_t{1} << 40 : 0;
    if (with_socket) info.secret = Secret::random();
    if (with_socket) info.endpoint = tcp_endpoint_from_text("10.0.0.1 4711 4 52");
    const auto copy = peer_info_from_text(to_text(info));
    ASSERT_TRUE(copy);
    EXPECT_EQ(to_line(copy->identity), to_line(info.identity));
    EXPECT_EQ(copy->socket_name, info.socket_name);
    EXPECT_EQ(copy->settings, info.settings);
    EXPECT_EQ(copy->heap_bytes, info.heap_bytes);
    EXPECT_EQ(copy->world, info.world);
    EXPECT_EQ(copy->thresholds.direct_bytes, info.thresholds.direct_bytes);
    EXPECT_EQ(to_text(*copy), to_text(info));
    ASSERT_EQ(copy->secret.has_value(), with_socket);
    if (!with_socket) continue;
    EXPECT_EQ(copy->secret->group, info.secret->group);
    EXPECT_EQ(copy->secret->token, info.secret->token);
    EXPECT_EQ(copy->endpoint->address.text(), "10.0.0.1:4711");
    EXPECT_EQ(copy->endpoint->streams, 4);
    EXPECT_EQ(copy->endpoint->store_ms, 52);
  }
}

TEST(PeerInfo, MalformedTextIsRefused) {
  const PeerInfo info = sample_info();
  const std::string good = to_text(info), title = good.substr(0, good.find('\n')),
                    limits = to_text(info.thresholds) + "\n";
  const std::string line = title + "\n" + to_line(info.identity), untitled = good.substr(title.size() + 1);
  PeerInfo foreign_socket = info;
  foreign_socket.socket_name = "/tmp/elsewhere";
  for (const std::string& bad : {std::string(),
                                 line,
                                 line + "\n",
                                 line + "\n" + info.socket_name,
                                 "\n" + good,
                                 line + "\n\n" + info.settings,
                                 line + "\n-\n-\n-\n" + info.settings,
                                 line + "\n-\n-\n-\n-4096\n" + limits + info.settings,
                                 line + "\n-\n-\n-\n4k\n" + limits + info.settings,
                                 line + "\n-\n-\n-\n0\n" + info.settings,
                                 line + "\n-\n-\n-\n0\ntree_bytes=1\n" + info.settings,
                                 line + "\n-\n" + std::string(80, 'g') + "\n-\n0\n" + limits + info.settings,
                                 line + "\n-\n" + std::string(82, 'a') + "\n-\n0\n" + limits + info.settings,
                                 line + "\n-\n-\n10.0.0.1 0 1 0\n0\n" + limits + info.settings,
                                 line + "\n-\n-\n10.0.0.1 4711 1\n0\n" + limits + info.settings,
                                 "x" + good,
                                 to_text(foreign_socket),
                                 untitled,
                                 title + "x\n" + untitled,
                                 "ringdp " + untitled,
                                 "ringdp x 3\n" + untitled,
                                 "ringdp 1000000 3\n" + untitled,
                                 good + std::string(4096, 'x'),
                                 std::string(100, '\n'),
                                 std::string(50, '\0')}) {
    EXPECT_FALSE(peer_info_from_text(bad)) << bad;
  }
}

TEST(Secret, EveryGroupHasItsOwn) {
  const Secret a = Secret::random(), b = Secret::random();
  EXPECT_NE(a.token, b.token);
  EXPECT_NE(a.group, b.group);
}

TEST(PeerInfo, TheProtocolOfAnotherBuildCanBeRead) {
  EXPECT_EQ(protocol_of_peer_info(to_text(sample_info())), transport::kProtocolVersion);
  EXPECT_EQ(protocol_of_peer_info("ringdp 1000000 whatever\nit writes"), 1000000u);
  for (const char* other : {"", "ringdp", "ringdp x", "ringdp -1 3", "identity-1 host"})
    EXPECT_FALSE(protocol_of_peer_info(other)) << other;
}

TEST(PeerInfo, SettingsThatMustAgreeChangeTheText) {
  const std::string plain = shared_settings(Settings{});
  std::vector<Settings> changed(7);
  changed[0].transport = TransportChoice::kTcp;
  changed[1].algorithm = AlgorithmChoice::kRing;
  changed[2].order = Order::kRotated;
  changed[3].segment_bytes *= 2;
  changed[4].slot_bytes = 4096;
  changed[5].link_bytes *= 2;
  changed[6].heap_bytes *= 2;
  for (const Settings& settings : changed) EXPECT_NE(shared_settings(settings), plain);
  Settings own_affair;
  own_affair.spin_us += 1;
  own_affair.thresholds.direct_bytes += 1;
  own_affair.socket_ifname = "eth0";
  EXPECT_EQ(shared_settings(own_affair), plain) << "these may differ between ranks";
}

TEST(TcpEndpoint, SurvivesTheStore) {
  for (const char* text : {"10.0.0.1 4711 4 0", "fd00::1 65535 64 60000", "127.0.0.1 1 1 52"}) {
    const auto offer = tcp_endpoint_from_text(text);
    ASSERT_TRUE(offer) << text;
    EXPECT_EQ(to_text(*offer), text);
  }
}

TEST(TcpEndpoint, WhatNoRankWritesIsRefused) {
  for (const char* text :
       {"", "10.0.0.1", "10.0.0.1 4711", "10.0.0.1 4711 0 0", "10.0.0.1 4711 65 0", "10.0.0.1 0 4 0",
        "10.0.0.1 65536 4 0", "a.host 4711 4 0", "10.0.0.1 4711 4 0 ", "10.0.0.1 04711 4 0", "10.0.0.1 4711 04 0",
        "10.0.0.1 4711 4 00", "10.0.0.1 4711 4 -1", "10.0.0.1 4711 4 x", "10.0.0.1 4711 4 1 1", "fd00:0::1 1 1 0"}) {
    EXPECT_FALSE(tcp_endpoint_from_text(text)) << text;
  }
}

// As releases with protocol 8 wrote it.
TEST(TcpEndpoint, WithoutARoundTripIsOfAnotherRelease) { EXPECT_FALSE(tcp_endpoint_from_text("10.0.0.1 4711 4")); }

transport::HostIdentity process() {
  transport::HostIdentity identity;
  identity.host = "node-a";
  identity.pid = 77;
  return identity;
}

std::string named(const std::string& text, int rank = 1) {
  return with_name(Error(ErrorKind::kInternal, text, rank), rank, "NAME").what();
}

TEST(PeerName, SaysWhatThereIsToSay) {
  EXPECT_EQ(name_of_peer(1, 1, process()), "rank 1 (pid 77 on node-a)");
  EXPECT_EQ(name_of_peer(1, 3, process()), "rank 1 (rank 3 of the job, pid 77 on node-a)");
  EXPECT_EQ(name_of_peer(1, 1, process(), "10.0.0.2"), "rank 1 (pid 77 on node-a at 10.0.0.2)");
}

TEST(PeerName, TakesThePlaceOfTheFirstMention) {
  EXPECT_EQ(named("rank 1 sent bytes to rank 0"), "NAME sent bytes to rank 0");
  EXPECT_EQ(named("the link to rank 1"), "the link to NAME");
  EXPECT_EQ(named("rank 1's socket of rank 1"), "NAME's socket of rank 1");
}

TEST(PeerName, MeansThisRankOnly) {
  EXPECT_EQ(named("rank 12 and rank 1: no"), "rank 12 and NAME: no");
  EXPECT_EQ(named("rank 0 (rank 1 of the job, pid 7 on b) lost rank 1"),
            "rank 0 (rank 1 of the job, pid 7 on b) lost NAME");
  EXPECT_EQ(named("rank 0 called send(int8 x 4 to rank 1, tag 7), rank 1 did not"),
            "rank 0 called send(int8 x 4 to rank 1, tag 7), NAME did not");
  EXPECT_EQ(named("nobody is to blame"), "nobody is to blame");
}

TEST(PeerName, IsNotSaidTwice) {
  const std::string text = name_of_peer(1, 3, process()) + " died: rank 1";
  EXPECT_EQ(named(text), text);
}

TEST(PeerName, KeepsKindAndCulprit) {
  const Error error = with_name(Error(ErrorKind::kTimeout, "rank 1", 1), 1, "NAME");
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  EXPECT_EQ(error.culprit(), 1);
}

TEST(ProcessState, TellsRunningStoppedAndGone) {
  EXPECT_EQ(process_state(::getpid()), "running");
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child), "stopped by a signal (state T)");
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), "dead, not yet reaped (state Z)");
  ::waitpid(child, &status, 0);
  EXPECT_EQ(process_state(child), "gone");
}

}  // namespace
}  // namespace ringdp::comm
