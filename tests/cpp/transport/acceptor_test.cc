#include "transport/acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "transport/unix_socket.h"

namespace ringdp::transport {
namespace {

constexpr int kHangMs = 60'000;  // a guard against hanging, not a time that is tested

Hello hello_from(int rank, Channel channel = Channel::kControl) {
  Hello hello{99, 1, rank, 0, 4, channel, {}};
  hello.token.fill(std::byte{0x5a});
  return hello;
}

bool admit_all(int, int) { return true; }

class AcceptorTest : public testing::Test {
 protected:
  UniqueFd dial() {
    UniqueFd socket = connect_unix(listener_.name);
    EXPECT_TRUE(socket);
    return socket;
  }
  UniqueFd dial(const void* bytes, size_t size) {
    UniqueFd socket = dial();
    EXPECT_EQ(::send(socket.get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    return socket;
  }
  UniqueFd dial(const Hello& hello) {
    const HelloFrame frame = encode(hello);
    return dial(frame.data(), frame.size());
  }
  // What an honest peer reads: a whole hello.
  static std::optional<Hello> read_reply(const UniqueFd& socket) {
    HelloFrame frame;
    if (!recv_all(socket.get(), frame.data(), frame.size(), {Deadline::never(), nullptr})) return std::nullopt;
    return decode(frame.data(), frame.size());
  }
  // True when the other side closed without a single byte in answer.
  static bool is_closed_silently(const UniqueFd& socket) {
    char byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  UnixListener listener_ = UnixListener::open();
};

TEST_F(AcceptorTest, NothingExpectedIsDoneAtOnce) {
  Acceptor acceptor(listener_.fd.get(), {}, admit_all);
  EXPECT_TRUE(acceptor.serve(kHangMs));
}

TEST_F(AcceptorTest, ExpectedRanksGetAReplyInTheirName) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1), hello_from(3), hello_from(3, Channel::kBulk)}, admit_all);
  EXPECT_EQ(acceptor.missing(), (std::vector<int>{1, 3}));
  const UniqueFd three = dial(hello_from(3)), one = dial(hello_from(1));
  while (acceptor.missing() != std::vector<int>{3}) ASSERT_FALSE(acceptor.serve(kHangMs));
  const UniqueFd bulk = dial(hello_from(3, Channel::kBulk));
  while (!acceptor.serve(kHangMs)) {
  }
  EXPECT_TRUE(acceptor.missing().empty());
  EXPECT_EQ(acceptor.refused(), 0u);
  const auto reply = read_reply(one);
  ASSERT_TRUE(reply);
  EXPECT_TRUE(matches(*reply, reply_to(hello_from(1))));
  const auto arrivals = acceptor.take_arrivals();
  ASSERT_EQ(arrivals.size(), 3u);
  EXPECT_EQ(arrivals[2].hello.channel, Channel::kBulk);
}

TEST_F(AcceptorTest, WrongHellosAreClosedWithoutAWord) {
  std::vector<Hello> wrong(7, hello_from(1));
  wrong[0].token[31] ^= std::byte{1};
  wrong[1].group += 1;
  wrong[2].generation += 1;
  wrong[3].from = 2;
  wrong[4].to = 3;
  wrong[5].world = 5;
  wrong[6].channel = Channel::kBulk;
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  std::vector<UniqueFd> sockets;
  for (const Hello& hello : wrong) sockets.push_back(dial(hello));
  while (acceptor.refused() < wrong.size()) ASSERT_FALSE(acceptor.serve(kHangMs));
  for (const UniqueFd& socket : sockets) EXPECT_TRUE(is_closed_silently(socket));
  const UniqueFd honest = dial(hello_from(1));
  EXPECT_TRUE(acceptor.serve(kHangMs));
}

TEST_F(AcceptorTest, ARankGetsInOnlyOnce) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1), hello_from(2)}, admit_all);
  const UniqueFd first = dial(hello_from(1)), replay = dial(hello_from(1));
  while (acceptor.refused() == 0) ASSERT_FALSE(acceptor.serve(kHangMs));
  EXPECT_TRUE(is_closed_silently(replay));
  EXPECT_EQ(acceptor.missing(), std::vector<int>{2});
}

TEST_F(AcceptorTest, AdmitHasTheLastWord) {
  int asked = -1;
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, [&](int, int rank) {
    asked = rank;
    return false;
  });
  const UniqueFd socket = dial(hello_from(1));
  while (acceptor.refused() == 0) ASSERT_FALSE(acceptor.serve(kHangMs));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(is_closed_silently(socket));
}

TEST_F(AcceptorTest, AHelloMayComeByteByByte) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const HelloFrame frame = encode(hello_from(1));
  const UniqueFd slow = dial();
  for (size_t i = 0; i + 1 < frame.size(); ++i) {
    ASSERT_EQ(::send(slow.get(), &frame[i], 1, MSG_NOSIGNAL), 1);
    ASSERT_FALSE(acceptor.serve(0));
  }
  ASSERT_EQ(::send(slow.get(), &frame.back(), 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(acceptor.serve(kHangMs));
}

TEST_F(AcceptorTest, BytesBehindTheHelloStayInTheSocket) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const HelloFrame frame = encode(hello_from(1));
  std::vector<std::byte> bytes(frame.begin(), frame.end());
  bytes.push_back(std::byte{42});
  const UniqueFd eager = dial(bytes.data(), bytes.size());
  ASSERT_TRUE(acceptor.serve(kHangMs));
  const auto arrivals = acceptor.take_arrivals();
  std::byte next{};
  ASSERT_EQ(::recv(arrivals[0].socket.get(), &next, 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(next, std::byte{42});
}

TEST_F(AcceptorTest, HalfOpenConnectionsAreBoundedAndTheOldestGoFirst) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 200; ++i) {
    silent.push_back(dial());
    ASSERT_FALSE(acceptor.serve(0));
    ASSERT_LE(acceptor.waiting(), Acceptor::kMostWaiting);
  }
  EXPECT_TRUE(is_closed_silently(silent.front()));
  EXPECT_FALSE(is_closed_silently(silent.back()));
  const UniqueFd honest = dial(hello_from(1));
  while (!acceptor.serve(kHangMs)) {
  }
  EXPECT_TRUE(read_reply(honest));
}

TEST_F(AcceptorTest, ASilentConnectionIsDroppedAfterItsSecond) {
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  const UniqueFd silent = dial();
  while (acceptor.waiting() == 0) ASSERT_FALSE(acceptor.serve(kHangMs));
  while (acceptor.waiting() > 0) ASSERT_FALSE(acceptor.serve(kHangMs));
  EXPECT_EQ(acceptor.refused(), 1u);
  EXPECT_TRUE(is_closed_silently(silent));
}

TEST_F(AcceptorTest, GarbageOfEveryLengthIsRefused) {
  std::mt19937 random(5);
  Acceptor acceptor(listener_.fd.get(), {hello_from(1)}, admit_all);
  for (size_t length = 1; length < 3 * kHelloBytes; length += 7) {
    std::vector<unsigned char> garbage(length);
    for (auto& byte : garbage) byte = static_cast<unsigned char>(random());
    const size_t before = acceptor.refused();
    UniqueFd socket = dial(garbage.data(), garbage.size());
    socket.reset();
    while (acceptor.refused() == before) ASSERT_FALSE(acceptor.serve(kHangMs));
  }
  EXPECT_EQ(acceptor.waiting(), 0u);
}

}  // namespace
}  // namespace ringdp::transport
