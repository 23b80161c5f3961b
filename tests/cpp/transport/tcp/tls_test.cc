#include "transport/tcp/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "transport/link_suite.h"
#include "transport/socket.h"
#include "transport/tcp/certificates.h"
#include "transport/tcp/openssl.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_sockets.h"
#include "transport/thrown.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <type_traits>

#define RD_SAME(result, name, parameters)                                                      \
  static_assert(std::is_same_v<decltype(&::name), decltype(ringdp::transport::OpenSsl::name)>, \
                "declared differently by OpenSSL: " #name);
RD_OPENSSL_FUNCTIONS(RD_SAME)
#undef RD_SAME
#endif

namespace ringdp::transport {
namespace {

const WaitPolicy kUntilDone{Deadline::never(), nullptr};

std::unique_ptr<TlsContext> context_of(const std::string& name = "member", const std::string& authority = "ca") {
  const Settings s = Certificates::get().put_into({}, name, authority);
  return std::make_unique<TlsContext>(s.tls_cert, s.tls_key, s.tls_ca);
}

// Both ends of a connection, once they have met.
struct TlsSockets {
  TlsSockets() {
    TcpSockets sockets;
    const auto context = context_of();
    auto client = context->connect(sockets.near.get(), "far"), server = context->accept(sockets.far.get(), "near");
    near = Socket(std::move(sockets.near), std::move(client));
    far = Socket(std::move(sockets.far), std::move(server));
    std::thread other([this] {
      char byte = 0;
      EXPECT_TRUE(recv_all(far.view(), &byte, 1, kUntilDone)) << far.view().failure();
    });
    EXPECT_TRUE(finish_handshake(near.view(), kUntilDone) && send_all(near.view(), "x", 1, kUntilDone))
        << near.view().failure();
    other.join();
  }
  Socket near, far;
};

class TlsPair : public SocketLinks {
 public:
  TlsPair() {
    if ([] { RINGDP_NEEDS_CERTIFICATES(); }(); testing::Test::IsSkipped()) return;
    TlsSockets sockets;
    links_[0] = std::make_unique<TcpLink>(std::move(sockets.near), 1, "one", TcpLink::Options{});
    links_[1] = std::make_unique<TcpLink>(std::move(sockets.far), 0, "zero", TcpLink::Options{});
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Tls, LinkSuite, testing::Types<TlsPair>);

// Replaces what one end has encrypted by other bytes.
class Tampering : public testing::Test {
 protected:
  void SetUp() override { RINGDP_NEEDS_CERTIFICATES(); }

  static std::string error_after(const std::function<std::string(std::string)>& change) {
    TlsSockets sockets;
    TcpLink sender(std::move(sockets.near), 1, "one", TcpLink::Options{});
    // From here on the ends are connected by this test only.
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const UniqueFd here(ends[0]), there(ends[1]);
    const UniqueFd wire(::dup(sockets.far.get()));
    EXPECT_EQ(::dup2(there.get(), sockets.far.get()), sockets.far.get());
    TcpLink receiver(std::move(sockets.far), 7, "10.9.8.7:6", TcpLink::Options{});
    const std::string message(1000, 'm');
    std::string sealed;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(sender.try_send(message.data(), message.size()), message.size());
      std::string record(1000 + kOverhead, '\0');
      EXPECT_EQ(::recv(wire.get(), record.data(), record.size(), MSG_WAITALL), static_cast<ssize_t>(record.size()));
      EXPECT_EQ(record.find("mmmmmmmm"), std::string::npos) << "in plain";
      sealed += record;
    }
    sealed = change(sealed);
    EXPECT_EQ(::send(here.get(), sealed.data(), sealed.size(), 0), static_cast<ssize_t>(sealed.size()));
    ::shutdown(here.get(), SHUT_WR);
    std::string got(3 * message.size(), '\0');
    try {
      for (size_t at = 0; at < got.size();) {
        const size_t n = receiver.try_recv(got.data() + at, got.size() - at);
        EXPECT_EQ(got.substr(at, n), std::string(n, 'm'));
        at += n;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.culprit(), 7);
      return error.what();
    }
    return "";
  }

  static constexpr size_t kOverhead = 5 + 1 + 16;  // header, type, tag
};

TEST_F(Tampering, EveryChangedLostRepeatedOrMovedRecordIsNoticed) {
  constexpr size_t kRecord = 1000 + kOverhead;
  EXPECT_EQ(error_after([](std::string s) { return s; }), "");
  for (const size_t at : {size_t{0}, size_t{4}, size_t{5}, size_t{500}, kRecord - 1, 2 * kRecord + 100}) {
    const std::string said = error_after([at](std::string s) {
      s[at] ^= 1;
      return s;
    });
    EXPECT_NE(said, "") << "a bit of byte " << at;
  }
  EXPECT_NE(error_after([](const std::string& s) { return s.substr(kRecord); }), "");
  EXPECT_NE(error_after([](const std::string& s) { return s.substr(0, kRecord) + s; }), "");
  EXPECT_NE(error_after([](const std::string& s) { return s.substr(kRecord, kRecord) + s.substr(0, kRecord) + s; }),
            "");
  EXPECT_NE(error_after([](const std::string& s) { return s.substr(0, 2 * kRecord); }).find("closed by the other side"),
            std::string::npos);
  const std::string said = error_after([](std::string s) {
    s[500] ^= 1;
    return s;
  });
  for (const char* part : {"rank 7", "10.9.8.7:6", "changed on its way", "bad record mac"}) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
}

TEST(Tls, ALinkWhosePeerIsResetIsLost) {
  RINGDP_NEEDS_CERTIFICATES();
  TlsSockets sockets;
  TcpLink link(std::move(sockets.near), 7, "10.9.8.7:6", TcpLink::Options{});
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(sockets.far.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  sockets.far = Socket();
  std::vector<pollfd> polls;
  link.add_polls(POLLIN, polls);
  ASSERT_EQ(::poll(polls.data(), 1, 60'000), 1);
  char byte = 0;
  const Error error = thrown([&] { link.try_recv(&byte, 1); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(error.culprit(), 7);
}

// What was encrypted before the socket was full is not encrypted again, whatever is offered of the same stream next.
TEST(Tls, ThePieceThatAFullSocketLeftMayBeOfferedInOtherPortions) {
  RINGDP_NEEDS_CERTIFICATES();
  TlsSockets sockets;
  std::vector<char> bytes(64 << 20);
  ByteSequence::of(0).write(0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  size_t sent = 0;
  for (ssize_t n = 0; (n = sockets.near.view().send(bytes.data() + sent, bytes.size() - sent)) > 0;) sent += n;
  ASSERT_EQ(errno, EAGAIN);
  ASSERT_LT(sent, bytes.size());
  std::vector<char> got(bytes.size());
  size_t received = 0;
  const auto receive = [&](size_t most) {
    const ssize_t n = sockets.far.view().recv(got.data() + received, most);
    if (n > 0) received += n;
  };
  const size_t until = sent + (1 << 20);
  while (received < until) {
    receive(until - received);
    const size_t portion = std::min<size_t>(until - sent, 777);
    const ssize_t n = portion > 0 ? sockets.near.view().send(bytes.data() + sent, portion) : 0;
    if (n > 0) sent += n;
  }
  EXPECT_EQ(sent, until);
  EXPECT_EQ(std::memcmp(got.data(), bytes.data(), until), 0);
}

// Keys change under way, more often than the 32 times in a row that OpenSSL would take.
TEST(Tls, KeysAreChanged) {
  RINGDP_NEEDS_CERTIFICATES();
  TcpSockets sockets;
  const Settings s = Certificates::get().put_into({});
  const OpenSsl& ssl = openssl();
  ssl_ctx_st* const context = ssl.SSL_CTX_new(ssl.TLS_method());
  ASSERT_EQ(ssl.SSL_CTX_use_certificate_chain_file(context, s.tls_cert.c_str()), 1);
  ASSERT_EQ(ssl.SSL_CTX_use_PrivateKey_file(context, s.tls_key.c_str(), 1), 1);
  Tls near(ssl, context, sockets.near.get(), "far", true, 2), far(ssl, context, sockets.far.get(), "near", false, 3);
  ssl.SSL_CTX_free(context);
  const SocketView near_end(sockets.near.get(), &near), far_end(sockets.far.get(), &far);
  const auto rounds = [](SocketView socket, int number) {
    for (int i = 0; i < 200; ++i) {
      int theirs = -1;
      const int own = 2 * i + number;
      ASSERT_TRUE(send_all(socket, &own, sizeof own, kUntilDone)) << socket.failure();
      ASSERT_TRUE(recv_all(socket, &theirs, sizeof theirs, kUntilDone)) << socket.failure();
      ASSERT_EQ(theirs, 2 * i + 1 - number);
    }
  };
  std::thread other([&] {
    char byte = 0;
    ASSERT_TRUE(recv_all(far_end, &byte, 1, kUntilDone)) << far_end.failure();
    rounds(far_end, 0);
  });
  ASSERT_TRUE(finish_handshake(near_end, kUntilDone) && send_all(near_end, "x", 1, kUntilDone)) << near_end.failure();
  rounds(near_end, 1);
  other.join();
  // Two more messages, and a key update (5 bytes) with one of them: each sealed in a record of 22 bytes more.
  constexpr ssize_t kOnTheWire = 2 * (4 + 22) + (5 + 22);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(send_all(near_end, "four", 4, kUntilDone));
  pollfd entry{sockets.far.get(), POLLIN, 0};
  ssize_t total = 0;
  for (char bytes[100]; total < kOnTheWire && ::poll(&entry, 1, 10'000) == 1;) {
    total += ::recv(sockets.far.get(), bytes, sizeof bytes, 0);
  }
  EXPECT_EQ(total, kOnTheWire);
}

// Messages of several threads on one connection that a third reads, as the watch's and a group's are.
TEST(Tls, PostedMessagesArriveWholeFromAnyThread) {
  RINGDP_NEEDS_CERTIFICATES();
  constexpr int kEach = 500;
  TlsSockets sockets;
  const auto post = [&](char mark) {
    for (int i = 0; i < kEach; ++i) {
      const std::string message(100, mark);
      sockets.near.view().post(message.data(), message.size());
    }
  };
  std::thread first(post, 'a'), second(post, 'b');
  int seen[2] = {};
  for (int i = 0; i < 2 * kEach; ++i) {
    std::string message(100, '\0');
    ASSERT_TRUE(recv_all(sockets.far.view(), message.data(), message.size(), kUntilDone));
    EXPECT_EQ(message, std::string(100, message[0]));
    ++seen[message[0] == 'b'];
  }
  first.join();
  second.join();
  EXPECT_EQ(seen[0], kEach);
  EXPECT_EQ(seen[1], kEach);
}

TEST(Tls, WhatCameBehindWhatWasReadIsNotForgotten) {
  RINGDP_NEEDS_CERTIFICATES();
  TlsSockets sockets;
  EXPECT_FALSE(sockets.far.view().has_buffered());
  ASSERT_TRUE(send_all(sockets.near.view(), "12", 2, kUntilDone));
  char byte = 0;
  ASSERT_TRUE(recv_all(sockets.far.view(), &byte, 1, kUntilDone));
  EXPECT_TRUE(sockets.far.view().has_buffered());
  ASSERT_TRUE(recv_all(sockets.far.view(), &byte, 1, kUntilDone));
  EXPECT_EQ(byte, '2');
  EXPECT_FALSE(sockets.far.view().has_buffered());
}

// Each rank checks its own files before any rank connects.
TEST(TlsContext, FilesThatWillNotDoAreNamed) {
  RINGDP_NEEDS_CERTIFICATES();
  const Certificates& files = Certificates::get();
  const std::string ca = files["ca"], cert = files["member"], key = files["member.key"], text = files["text"];
  std::ofstream(text) << "no PEM";
  const struct {
    std::string cert, key, ca;
    std::vector<std::string> said;
  } kCases[] = {
      {"", key, ca, {"RINGDP_TLS_CERT is not set", "RINGDP_TLS_KEY"}},
      {cert, "", ca, {"RINGDP_TLS_KEY is not set", "all three"}},
      {cert, key, "", {"RINGDP_TLS_CA is not set"}},
      {cert, "/no/such.key", ca, {"RINGDP_TLS_KEY=/no/such.key", "No such file"}},
      {text, key, ca, {"RINGDP_TLS_CERT=" + text, "no certificate in PEM"}},
      {cert, text, ca, {"RINGDP_TLS_KEY=" + text, "RINGDP_TLS_CERT=" + cert}},
      {cert, key, text, {"RINGDP_TLS_CA=" + text, "no certificate in PEM"}},
      {cert, files["stranger.key"], ca, {"RINGDP_TLS_KEY=" + files["stranger.key"], "key values mismatch"}},
      {cert, files["locked.key"], ca, {"RINGDP_TLS_KEY=" + files["locked.key"], "without a passphrase"}},
      {files["expired"], files["expired.key"], ca, {files["expired"], "certificate has expired"}},
      {files["stranger"], files["stranger.key"], ca, {files["stranger"], ca, "issuer"}},
      {files["bare"], files["bare.key"], ca, {files["bare"], "self-signed"}},
  };
  for (const auto& c : kCases) {
    const Error error = thrown([&] { TlsContext(c.cert, c.key, c.ca); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    const std::string said = error.what();
    for (const std::string& part : c.said) EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  }
  EXPECT_NO_THROW(context_of());
}

// Who connects with `client`, who accepts with `server`: what each of them says in the end.
std::pair<std::string, std::string> failures(const TlsContext* client, const TlsContext* server) {
  TcpSockets sockets;
  auto tls = client ? client->connect(sockets.near.get(), "rank 0") : nullptr;
  const Socket near(std::move(sockets.near), std::move(tls));
  tls = server ? server->accept(sockets.far.get(), "10.0.0.9:5") : nullptr;
  Socket far(std::move(sockets.far), std::move(tls));
  std::pair<std::string, std::string> said;
  std::thread other([&] {
    char bytes[5];
    if (recv_all(far.view(), bytes, sizeof bytes, kUntilDone)) send_all(far.view(), "plain", 5, kUntilDone);
    said.second = far.view().failure();
    far = Socket();
  });
  char bytes[5];
  if (finish_handshake(near.view(), kUntilDone)) send_all(near.view(), "hello", 5, kUntilDone);
  recv_all(near.view(), bytes, sizeof bytes, kUntilDone);
  said.first = near.view().failure();
  other.join();
  return said;
}

TEST(TlsContext, BothSidesSayWhyTheyDoNotMeet) {
  RINGDP_NEEDS_CERTIFICATES();
  const Certificates& files = Certificates::get();
  std::ofstream(files["both"]) << std::ifstream(files["ca"]).rdbuf() << std::ifstream(files["other"]).rdbuf();
  const auto member = context_of(), stranger = context_of("stranger", "other");
  const auto trusting = context_of("stranger", "both");
  const auto has = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << "'" << part << "' in '" << said << "'";
  };
  EXPECT_EQ(failures(member.get(), member.get()), (std::pair<std::string, std::string>()));
  const std::string not_accepted = " failed: its certificate is not accepted here, ";
  const std::string refused = " failed: it refuses this side, tlsv1 alert unknown ca";
  const auto by_client = failures(member.get(), stranger.get());
  has(by_client.first, "TLS with rank 0" + not_accepted);
  has(by_client.second, "TLS with 10.0.0.9:5" + refused);
  // Here the client is through with its handshake when it is refused.
  const auto by_server = failures(trusting.get(), member.get());
  has(by_server.first, "TLS with rank 0" + refused);
  has(by_server.second, "TLS with 10.0.0.9:5" + not_accepted);
  has(failures(nullptr, member.get()).second, "TLS with 10.0.0.9:5 failed: it does not speak TLS");
  has(failures(member.get(), nullptr).first, "TLS with rank 0 failed: it does not speak TLS");
}

TEST(OpenSsl, IsFoundOnceForTheProcess) {
  try {
    const OpenSsl& first = openssl();
    EXPECT_EQ(&openssl("/no/such/library"), &first);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace ringdp::transport
