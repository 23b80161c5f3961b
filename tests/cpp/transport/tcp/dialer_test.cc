// Many connections at once: they meet an Acceptor, and what goes wrong with one is tried again.
#include "transport/tcp/dialer.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "transport/tcp/certificates.h"
#include "transport/tcp/tcp_sockets.h"

namespace ringdp::transport {
namespace {

constexpr int kCaller = 3, kRanks = 4;
const WaitPolicy kUntilAnswered{Deadline::never(), nullptr};

Hello hello_to(int rank, Purpose purpose = Purpose::kControl, uint32_t stream = 0) {
  return {7, 1, kCaller, rank, kRanks, purpose, {}, stream};
}

void sleep(const Dialer& dialer, std::vector<pollfd> polls = {}) {
  dialer.add_polls(polls);
  ASSERT_GE(::poll(polls.data(), polls.size(), dialer.poll_ms(60'000)), 0);
}

class DialerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      listener_ = listen_on(*SocketAddress::parse(GetParam(), 0));
      here_ = SocketAddress::bound_to(listener_.get());
    } catch (const Error& error) {
      GTEST_SKIP() << GetParam() << " is not to be had here: " << error.what();
    }
  }

  // Reads a hello and says `answer`; then the connection is closed unless it is kept.
  UniqueFd answer(const HelloFrame& frame, size_t size = kHelloBytes) {
    pollfd entry{listener_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    HelloFrame theirs;
    EXPECT_TRUE(recv_all(socket.get(), theirs.data(), theirs.size(), kUntilAnswered));
    EXPECT_TRUE(send_all(socket.get(), frame.data(), size, kUntilAnswered));
    return socket;
  }

  // Dials rank 0 here, while `other` runs in a thread.
  std::vector<Arrival> dial(const std::function<void()>& other) {
    std::thread thread(other);
    Dialer dialer({{here_, hello_to(0)}}, nullptr);
    while (!dialer.advance()) sleep(dialer);
    thread.join();
    EXPECT_TRUE(dialer.missing().empty());
    return dialer.take_answers();
  }

  UniqueFd listener_;
  SocketAddress here_;
};

INSTANTIATE_TEST_SUITE_P(Families, DialerTest, testing::Values("127.0.0.1", "::1"));

// Nobody accepts until every hello is on its way, so they all take one round trip.
TEST_P(DialerTest, AllCallsAreUnderWayBeforeOneIsAnswered) {
  constexpr int kStreams = 40;
  std::vector<Dialer::Call> calls;
  std::vector<Hello> expected;
  for (uint32_t stream = 0; stream < kStreams; ++stream) {
    calls.push_back({here_, hello_to(static_cast<int>(stream % 3), Purpose::kBulk, stream)});
    expected.push_back(calls.back().hello);
  }
  Dialer dialer(std::move(calls), nullptr);
  std::vector<pollfd> polls;
  do {
    ASSERT_FALSE(dialer.advance());
    polls.clear();
    dialer.add_polls(polls);
    ::poll(nullptr, 0, 1);
  } while (polls.size() < kStreams || std::any_of(polls.begin(), polls.end(), [](const pollfd& entry) {
             return entry.events != POLLIN;  // the answer is what is missing
           }));
  EXPECT_EQ(dialer.missing(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(dialer.obstacle(), here_.text() + ": no answer yet");
  Acceptor acceptor(listener_.get(), expected, [](int, int) { return true; });
  while (!acceptor.advance()) {
    polls.clear();
    acceptor.add_polls(polls);
    ASSERT_GT(::poll(polls.data(), polls.size(), 60'000), 0);
  }
  while (!dialer.advance()) sleep(dialer);
  EXPECT_EQ(acceptor.refused(), 0u);

  std::map<uint32_t, int> said;
  for (const Arrival& answer : dialer.take_answers()) {
    EXPECT_EQ(answer.hello.from, static_cast<int>(answer.hello.stream % 3));
    EXPECT_EQ(answer.hello.to, kCaller);
    EXPECT_TRUE(send_all(answer.socket.get(), &answer.hello.stream, sizeof answer.hello.stream, kUntilAnswered));
    said[answer.hello.stream] = answer.socket.get();
  }
  ASSERT_EQ(said.size(), size_t{kStreams});
  for (const Arrival& arrival : acceptor.take_arrivals()) {
    uint32_t stream = 0;
    EXPECT_TRUE(recv_all(arrival.socket.get(), &stream, sizeof stream, kUntilAnswered));
    EXPECT_EQ(stream, arrival.hello.stream);
  }
}

TEST_P(DialerTest, NobodyToCallIsDoneAtOnce) {
  Dialer dialer({}, nullptr);
  EXPECT_TRUE(dialer.advance());
  EXPECT_EQ(dialer.obstacle(), "");
  EXPECT_EQ(dialer.poll_ms(123), 123);
}

// The port is opened again once it has been refused three times.
TEST_P(DialerTest, TriesAgainWhileRefused) {
  listener_.reset();
  Dialer dialer({{here_, hello_to(0)}}, nullptr);
  for (int pauses = 0; pauses < 3;) {
    ASSERT_FALSE(dialer.advance());
    std::vector<pollfd> polls;
    dialer.add_polls(polls);
    pauses += polls.empty();
    sleep(dialer);
  }
  EXPECT_EQ(dialer.missing(), std::vector<int>{0});
  EXPECT_EQ(dialer.obstacle(), here_.text() + ": Connection refused");
  listener_.reset(::socket(here_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener_.get(), here_.raw(), here_.size), 0);
  ASSERT_EQ(::listen(listener_.get(), 1), 0);
  std::thread other([&] { answer(encode(reply_to(hello_to(0)))); });
  while (!dialer.advance()) sleep(dialer);
  other.join();
}

TEST_P(DialerTest, AConnectionThatIsClosedIsMadeAgain) {
  UniqueFd kept;
  const auto answers = dial([&] {
    const HelloFrame frame = encode(reply_to(hello_to(0)));
    answer(frame, 0);
    answer(frame, kHelloBytes - 1);
    kept = answer(frame);
  });
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_TRUE(send_all(kept.get(), "x", 1, kUntilAnswered));
  char byte = 0;
  EXPECT_TRUE(recv_all(answers[0].socket.get(), &byte, 1, kUntilAnswered)) << "it is the last connection";
}

TEST_P(DialerTest, WrongAnswersAreNotTaken) {
  const HelloFrame own = encode(hello_to(0)), other = encode(reply_to(hello_to(0, Purpose::kBulk)));
  const auto answers = dial([&] {
    for (const HelloFrame& wrong : {own, other, HelloFrame{}}) answer(wrong);
    answer(encode(reply_to(hello_to(0))));
  });
  EXPECT_EQ(answers.size(), 1u);
}

TEST_P(DialerTest, BytesBehindTheAnswerStayInTheSocket) {
  const auto answers = dial([&] {
    const UniqueFd socket = answer(encode(reply_to(hello_to(0))));
    EXPECT_TRUE(send_all(socket.get(), "*", 1, kUntilAnswered));
  });
  char byte = 0;
  EXPECT_TRUE(recv_all(answers.at(0).socket.get(), &byte, 1, kUntilAnswered));
  EXPECT_EQ(byte, '*');
}

TEST_P(DialerTest, AFailureOfTlsNamesRankAndAddress) {
  RINGDP_NEEDS_CERTIFICATES();
  const Settings s = Certificates::get().put_into({}, "member", "ca");
  const TlsContext tls(s.tls_cert, s.tls_key, s.tls_ca);
  UniqueFd kept;
  std::thread other([&] { kept = answer(HelloFrame{}); });  // in plain
  Dialer dialer({{here_, hello_to(2)}}, &tls);
  while (!dialer.refusal()) {
    ASSERT_FALSE(dialer.advance());
    sleep(dialer);
  }
  other.join();
  EXPECT_EQ(dialer.refusal()->rank, 2);
  EXPECT_NE(dialer.refusal()->why.find("rank 2 at " + here_.text()), std::string::npos) << dialer.refusal()->why;
}

}  // namespace
}  // namespace ringdp::transport
